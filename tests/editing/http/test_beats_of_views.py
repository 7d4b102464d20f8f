"""A beat asks a view outside of its request: what it cannot ask it neither grants nor takes for a deletion."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections
from django.shortcuts import get_object_or_404
from django.urls import clear_url_caches, path

from django_distlock.editing.grants import read_grant, sign
from django_distlock.editing.versions import Inline
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import is_held

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponseBase

    from tests.editing.people import Person


class Prepared(views.Edit):
    """Keeps something in dispatch() that get_queryset() needs."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.section = "news"
        return super().dispatch(request, *args, **kwargs)

    def get_queryset(self) -> Any:
        return Article.objects.filter(section=self.section)


class Matched(views.Edit):
    """Asks which address was called."""

    def get_queryset(self) -> Any:
        match = self.request.resolver_match
        assert match.url_name == "matched"
        assert match.kwargs == self.kwargs
        return super().get_queryset()


class ByQuery(views.Edit):
    """The object is named in the query."""

    def get_object(self, queryset: Any = None) -> Any:
        return get_object_or_404(Article, pk=self.request.GET.get("id"))


class Locking(views.Edit):
    """Locks rows before it saves, as ATOMIC_REQUESTS allows."""

    def get_queryset(self) -> Any:
        if self.request.method == "POST":
            list(Article.objects.using("postgres").select_for_update())
        return super().get_queryset()


class Moody(views.Edit):
    """Its parts raise what the test says, at beats."""

    raises: dict[str, Exception] = {}  # noqa: RUF012

    def _at(self, place: str) -> None:
        if self.request.content_type == "application/json" and place in Moody.raises:
            raise Moody.raises[place]

    def get_queryset(self) -> Any:
        self._at("get_queryset")
        return super().get_queryset()

    def may_edit(self, request: HttpRequest, obj: Any) -> bool:
        self._at("may_edit")
        return True

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        self._at("may_take_over")
        return True


def moody_permission(request: HttpRequest, obj: Any) -> bool:
    if request.content_type == "application/json" and "permission" in Moody.raises:
        raise Moody.raises["permission"]
    return True


urlpatterns = [
    views.beats,
    path("edit/<int:pk>/", views.Edit.as_view()),
    path("prepared/<int:pk>/", Prepared.as_view()),
    path("matched/<int:pk>/", Matched.as_view(), name="matched"),
    path("query/", ByQuery.as_view()),
    path("locking/<int:pk>/", Locking.as_view()),
    path("moody/<int:pk>/", Moody.as_view()),
    path("moody-function/<int:pk>/", views.locked(permission=moody_permission)),
]
POSTED = {"title": "A bridge opens", "body": "By Ada."}


@pytest.fixture(autouse=True)
def _site(site: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "raises", {})


def is_unknown(answer: dict[str, Any]) -> bool:
    """Does the answer grant nothing, and say nothing of the object?"""
    return answer["state"] == "error" and answer["reason"] in ("view", "database")


def item(verb: str, grant: str, **more: Any) -> dict[str, Any]:
    return {"verb": verb, "grant": grant, "lease": secrets.token_hex(16), **more}


def test_a_view_that_is_prepared_in_dispatch_has_no_lock_and_says_so(
    ada: Person, article: Article, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"/prepared/{article.pk}/"
    fields = ada.open(address)
    with caplog.at_level(logging.WARNING):
        for verb in ("claim", "watch", "adopt", "renew", "takeover"):
            answer = ada.ask(verb, fields["distlock_edit"], lease=secrets.token_hex(16), previous="a" * 32, fresh=True)
            assert is_unknown(answer), (verb, answer)
    (named,) = [record for record in caplog.records if "Prepared" in record.getMessage()]
    assert named.exc_info is not None
    assert "section" in str(named.exc_info[1])
    assert not is_held(article)
    assert ada.client.post(address, {**POSTED, **fields}).status_code == 302


def test_one_such_form_leaves_the_others_of_the_page_alone(ada: Person, article: Article) -> None:
    other = Article.objects.create(title="Another", body="...")
    bad, good = ada.open(f"/prepared/{article.pk}/"), ada.open(f"/edit/{other.pk}/")
    items = [item("claim", each["distlock_edit"]) for each in (bad, good, bad)]
    reply = ada.beat(*items)
    assert reply.status_code == 200
    answers = reply.json()["items"]
    assert [is_unknown(answer) for answer in answers] == [True, False, True]
    assert answers[1]["state"] == "held"
    assert is_held(other)
    assert not is_held(article)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("get_queryset", OperationalError("x")),
        ("may_edit", AssertionError()),
        ("permission", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")),
    ],
)
def test_whatever_a_view_raises(ada: Person, bo: Person, article: Article, place: str, error: Exception) -> None:
    address = f"/moody-function/{article.pk}/" if place == "permission" else f"/moody/{article.pk}/"
    grant = ada.open(address)["distlock_edit"]
    lease = ada.claim(grant)
    theirs, other = bo.open(address)["distlock_edit"], bo.open(f"/edit/{article.pk}/")["distlock_edit"]
    Moody.raises[place] = error
    reply = bo.beat(item("takeover", theirs), item("watch", theirs), item("watch", other))
    assert reply.status_code == 200
    answers = reply.json()["items"]
    assert [is_unknown(answer) for answer in answers] == [True, True, False]
    assert "Ada" not in str(answers[:2])
    assert answers[2]["holder"]["label"] == "Ada"
    Moody.raises.clear()
    assert ada.ask("renew", grant, lease=lease)["state"] == "held"  # nothing was taken from her


def test_a_takeover_that_cannot_be_asked_is_not_granted(ada: Person, bo: Person, article: Article) -> None:
    address = f"/moody/{article.pk}/"
    grant, theirs = ada.open(address)["distlock_edit"], bo.open(address)["distlock_edit"]
    lease = ada.claim(grant)
    Moody.raises["may_take_over"] = AttributeError("x")
    assert bo.ask("watch", theirs).get("can_take_over", False) is False
    assert bo.ask("takeover", theirs, lease="b" * 32)["state"] == "error"
    Moody.raises.clear()
    assert ada.ask("renew", grant, lease=lease)["state"] == "held"


def test_an_address_that_is_gone_is_no_deletion(ada: Person, article: Article, settings: Any) -> None:
    grant = ada.open(f"/matched/{article.pk}/")["distlock_edit"]
    settings.ROOT_URLCONF = "tests.editing.site"  # a new version of the project
    clear_url_caches()
    assert is_unknown(ada.ask("claim", grant, lease="a" * 32))


def test_an_object_that_is_named_in_the_query(ada: Person, bo: Person, article: Article) -> None:
    address = f"/query/?next=%2Fa%3Fb&id={article.pk}&q=%C3%A4+%26"
    fields, theirs = ada.open(address), bo.open(address)
    assert bo.ask("watch", theirs["distlock_edit"], fresh=True)["state"] == "free"
    lease = ada.claim(fields["distlock_edit"])
    answer = bo.ask("claim", theirs["distlock_edit"], lease="b" * 32)
    assert (answer["state"], answer["holder"]["label"]) == ("busy", "Ada")
    assert bo.client.post(address, {**POSTED, **theirs}).status_code == 409
    ada.release([fields["distlock_edit"]], [lease])
    article.delete()
    assert bo.ask("watch", theirs["distlock_edit"], fresh=True)["reason"] == "deleted"


def test_a_query_that_is_too_long_to_be_kept(ada: Person, article: Article) -> None:
    """Without it the view finds nothing: that is no deletion."""
    address = f"/query/?id={article.pk}&filter={'x' * 20_000}"
    fields = ada.open(address)
    assert len(fields["distlock_edit"]) < 5_000
    assert is_unknown(ada.ask("claim", fields["distlock_edit"], lease="a" * 32))
    assert ada.client.post(address, {**POSTED, **fields}).status_code == 302


def test_a_view_that_locks_rows(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    address = f"/locking/{article.pk}/"
    fields = ada.open(address)
    lease = ada.claim(fields["distlock_edit"])
    posted = {**POSTED, **fields, "distlock_edit_lease": lease, "distlock_edit_tab": ada.tab}
    assert ada.client.post(address, posted).status_code == 302


@pytest.mark.parametrize("inline", [("articles.gone", "article"), ("articles.source", "gone")])
def test_a_form_that_is_older_than_the_code(ada: Person, article: Article, inline: tuple[str, str]) -> None:
    """Its inline was removed or renamed with a deployment."""
    fields = ada.open(f"/edit/{article.pk}/")
    known = read_grant(fields["distlock_edit"], None)
    old = sign(replace(known, inlines=(Inline(model=inline[0], fk=inline[1]),)))
    assert ada.ask("claim", old, lease="a" * 32)["state"] == "error"
    fields["distlock_edit"] = old
    answer = ada.client.post(f"/edit/{article.pk}/", {"title": "A bridge", "body": "What was typed", **fields})
    assert (answer.status_code, "What was typed" in answer.content.decode()) == (409, True)
