"""``@edit_locked(permission=)`` refuses every request, before anything is locked or told."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import RequestFactory
from django.urls import path
from django.views.generic import UpdateView

from django_distlock.editing import EditLockMixin, edit_locked
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import Person, is_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest, HttpResponse

CHANGE = "articles.change_article"


def owns(request: HttpRequest, obj: Any) -> bool:
    assert isinstance(obj, Article)
    return bool(request.user.has_perm(CHANGE))


@edit_locked(Article, permission=CHANGE)
async def coroutine(request: HttpRequest, pk: int) -> HttpResponse:
    return await sync_to_async(views.act)(request, pk)


KINDS = {
    "by_name": views.locked(permission=CHANGE),
    "opened": views.locked(permission=CHANGE, when="open"),
    "by_call": views.locked(permission=owns),
    "switched_off": views.locked(permission=CHANGE, mode="off"),
    "coroutine": coroutine,
}
urlpatterns = [
    views.beats,
    *(path(f"{name}/<int:pk>/", view) for name, view in KINDS.items()),
]
METHODS = ["get", "head", "post", "put", "patch", "delete"]
POSTED = {"title": "A bridge opens", "body": "By a stranger."}


pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture
def stranger(crew: None) -> Iterator[Person]:
    """Logged in, without any permission."""
    user = User.objects.create(username="stranger", password="!")
    yield Person(user)
    user.delete()


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_and_those_with_the_permission(
    ada: Person, stranger: Person, bo: Person, article: Article, kind: str
) -> None:
    lease = ada.claim(grant := ada.open(f"/by_name/{article.pk}/")["distlock_edit"])
    before = list(EditLeaseRow.rows.values())
    address = f"/{kind}/{article.pk}/"
    nobody = Person(None)
    for method in METHODS:
        data = {"data": POSTED} if method in ("get", "post") else {}
        reply = getattr(nobody.client, method)(address, **data)
        assert (method, reply.status_code) == (method, 302)
        assert "/login/" in reply["Location"]
        assert kind in reply["Location"]
        reply = getattr(stranger.client, method)(address, **data)
        assert (method, reply.status_code) == (method, 403)
        assert b"Ada" not in reply.content
    assert Article.objects.get().body == "On Saturday."
    assert list(EditLeaseRow.rows.values()) == before
    ada.release([grant], [lease])
    fields = bo.open(address)
    assert bo.client.post(address, {**POSTED, **fields, "body": "By Bo."}).status_code == 302
    assert Article.objects.get().body == "By Bo."


def test_what_is_gone(ada: Person, article: Article) -> None:
    """An object that does not exist, a permission that was taken away, an object that was deleted."""
    address = f"/by_call/{article.pk}/"
    assert ada.client.get(f"/by_call/{article.pk + 1}/").status_code == 404
    assert ada.client.post(f"/by_call/{article.pk + 1}/", POSTED).status_code == 404
    fields = ada.open(address)
    permissions = list(ada.user.user_permissions.all())
    ada.user.user_permissions.clear()
    answer = ada.ask("claim", fields["distlock_edit"], lease=secrets.token_hex(16))
    assert (answer["state"], answer["reason"]) == ("lost", "permission")
    assert ada.client.post(address, {**POSTED, **fields}).status_code == 403
    assert not is_held(article)
    ada.user.user_permissions.set(permissions)
    article.delete()
    assert ada.client.post(address, {**POSTED, **fields}).status_code == 409  # her text, kept


class Decided(EditLockMixin, UpdateView):  # type: ignore[type-arg]
    model = Article
    fields = ("title",)
    success_url = "/"

    def may_edit(self, request: HttpRequest, obj: Any) -> bool:
        return bool(request.user.has_perm(CHANGE))


def test_may_edit_of_a_view_refuses_the_page_and_the_save(stranger: Person, ada: Person, article: Article) -> None:
    before = Article.objects.values().get(pk=article.pk)
    for method in ("get", "post"):
        request = getattr(RequestFactory(), method)("/", POSTED)
        request.user, request.session = stranger.user, stranger.client.session
        with pytest.raises(PermissionDenied):
            Decided.as_view()(request, pk=article.pk)
    assert Article.objects.values().get(pk=article.pk) == before
    request = RequestFactory().get("/")
    request.user, request.session = ada.user, ada.client.session
    assert Decided.as_view()(request, pk=article.pk).status_code == 200


def test_what_decides_must_not_be_async(stranger: Person, article: Article) -> None:
    """A coroutine would always mean yes."""

    async def nobody(request: HttpRequest, obj: Any) -> bool:
        return False

    for name in ("permission", "takeover"):
        with pytest.raises(TypeError, match="plain functions"):
            edit_locked(Article, pk="pk", **{name: nobody})

    class Async(Decided):
        async def may_edit(self, request: HttpRequest, obj: Any) -> bool:  # type: ignore[override]
            return False

    request = RequestFactory().post("/", POSTED)
    request.user, request.session = stranger.user, stranger.client.session
    with pytest.raises(TypeError, match="plain function"):
        Async.as_view()(request, pk=article.pk)
