"""Saves inside transactions that other code has begun: as django-reversion does, and views in atomic()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.db import transaction
from django.shortcuts import redirect
from django.test import Client
from django.urls import path, re_path
from django.utils.decorators import method_decorator

from django_distlock.editing import EditLockAdmin
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import hidden

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from tests.editing.people import Person

OLD = {"body": "An old text.", "section": "culture"}


class RollBack(Exception):
    def __init__(self, response: HttpResponse) -> None:
        self.response = response


class Revisions:
    """Does what django-reversion's VersionAdmin does: https://github.com/etianen/django-reversion"""

    fields = ("title", "body")
    list_display = ("title", "section")
    list_editable = ("section",)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.revision_view)
        recover = self.admin_site.admin_view(self.recover_view)
        name = "articles_article_revision"
        return [
            re_path(r"^([^/]+)/history/(\d+)/$", view, name=name),
            re_path(r"^recover/(\d+)/$", recover),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        with transaction.atomic():
            return super().change_view(request, object_id, form_url, extra_context)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # type: ignore[override]
        with transaction.atomic():
            return super().changelist_view(request, extra_context)

    def revision_view(
        self, request: HttpRequest, object_id: str, version_id: str, extra_context: Any = None
    ) -> HttpResponse:
        return self._form_of_revision(
            request, unquote(object_id), lambda pk: Article.objects.filter(pk=pk).update(**OLD)
        )

    def recover_view(self, request: HttpRequest, version_id: str) -> HttpResponse:
        return self._form_of_revision(request, version_id, lambda pk: Article(pk=pk, title="Back", **OLD).save())

    def _form_of_revision(self, request: HttpRequest, pk: str, revert: Any) -> HttpResponse:
        try:
            with transaction.atomic():
                revert(pk)
                with transaction.atomic():
                    response: Any = self.changeform_view(request, quote(pk), request.path, None)
                    if request.method != "POST" or response.status_code != 302:
                        if response.status_code != 200:
                            raise LookupError("Could not load the version - not found")
                        response.render()
                        raise RollBack(response)
        except LookupError as error:
            messages.error(request, str(error))
            return redirect("versioned:articles_article_changelist")
        except RollBack as rolled_back:
            return rolled_back.response
        return response  # type: ignore[no-any-return]


class Versioned(EditLockAdmin, Revisions, admin.ModelAdmin):  # type: ignore[type-arg]
    pass


class Outside(Revisions, EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Its transactions begin before the edit lock is asked."""


class Open(Versioned):
    edit_lock = {"WHEN": "open"}  # noqa: RUF012


@method_decorator(transaction.atomic, name="dispatch")
class Edit(views.Edit):
    pass


@method_decorator(transaction.atomic, name="dispatch")
class Api(views.ArticleViewSet):
    pass


urlpatterns = [
    *views.urlpatterns,
    views.admin_site("versioned", (Article, Versioned)),
    views.admin_site("outside", (Article, Outside)),
    views.admin_site("opening", (Article, Open)),
    path("inside/<int:pk>/", Edit.as_view()),
    path("decorated/<int:pk>/", transaction.atomic(views.locked())),
    path("atomic-api/<int:pk>/", Api.as_view(views.one)),
]
PAGES = [
    "/versioned/articles/article/{}/change/",
    "/outside/articles/article/{}/change/",
    "/inside/{}/",
    "/decorated/{}/",
]
REVERTS = ["/versioned/articles/article/{}/history/1/", "/outside/articles/article/{}/history/1/"]
pytestmark = pytest.mark.usefixtures("site")
atomic = pytest.mark.parametrize("atomic_requests", [True], indirect=True)
every_page = pytest.mark.parametrize("page", [*PAGES, *REVERTS])


def post(person: Person, address: str, fields: dict[str, str], body: str) -> Any:
    return person.client.post(address, {"title": "A bridge opens", "body": body, **fields})


def body() -> str:
    return Article.objects.get().body


@every_page
def test_a_save_and_a_second_one(ada: Person, bo: Person, article: Article, page: str) -> None:
    address = page.format(article.pk)
    first, second = ada.open(address), bo.open(address)
    assert body() == "On Saturday."
    assert post(ada, address, first, "By Ada.").status_code == 302
    assert body() == "By Ada."
    post(bo, address, second, "By Bo.")
    assert body() == "By Ada."
    third = bo.open(address)
    assert post(bo, address, third, "By Bo.").status_code == 302
    assert body() == "By Bo."


@every_page
@atomic
def test_a_refusal_while_another_user_edits_says_why(
    ada: Person, bo: Person, article: Article, page: str, atomic_requests: bool
) -> None:
    address = page.format(article.pk)
    fields = bo.open(address)
    lease = ada.claim(grant := ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    refused = post(bo, address, fields, "By Bo.")
    assert Article.objects.get().section == "news"
    assert body() == "On Saturday."
    if page == REVERTS[1]:
        return  # its own transaction turns whatever is no save into a message
    assert refused.status_code == 409
    assert "Ada is editing this now." in refused.content.decode()
    assert "By Bo." in refused.content.decode()
    ada.release([grant], [lease])
    Article.objects.update(body="By a command.")
    assert post(bo, address, fields, "By Bo.").status_code == 409
    assert body() == "By a command."


def test_a_revert_restores_what_is_not_in_the_form_and_open_forms_see_it(
    ada: Person, bo: Person, article: Article
) -> None:
    fields = bo.open(f"/edit/{article.pk}/")
    address = REVERTS[0].format(article.pk)
    assert "An old text." in ada.client.get(address).content.decode()
    assert post(ada, address, ada.open(address), "On Saturday.").status_code == 302
    assert Article.objects.get().section == "culture"
    assert post(bo, f"/edit/{article.pk}/", fields, "By Bo.").status_code == 409


def test_the_lease_of_a_page_that_is_rolled_back(ada: Person, article: Article) -> None:
    """With WHEN "open" the page of a version has either a lease that is there, or none."""
    address = f"/opening/articles/article/{article.pk}/history/1/"
    fields = ada.open(address)
    if lease := fields["distlock_edit_lease"]:
        assert ada.ask("renew", fields["distlock_edit"], lease=lease)["state"] == "held"
    assert post(ada, address, fields, "An old text.").status_code == 302


def test_the_options_of_the_admin_count_on_the_page_of_a_version(
    ada: Person, boss: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Versioned, "may_take_over", lambda self, request, obj: False)
    ada.claim(ada.open(PAGES[0].format(article.pk))["distlock_edit"])
    grant = boss.open(REVERTS[0].format(article.pk))["distlock_edit"]
    assert boss.ask("takeover", grant, lease="d" * 32)["state"] == "error"


def test_a_deleted_object_is_recovered(ada: Person, article: Article) -> None:
    address = f"/versioned/articles/article/recover/{article.pk}/"
    Article.objects.all().delete()
    assert "distlock_edit" not in hidden(ada.client.get(address)), "a beat would say that it was deleted"
    assert post(ada, address, {}, "Back again.").status_code == 302
    assert body() == "Back again."


@pytest.mark.parametrize("site_name", ["versioned", "outside"])
@atomic
def test_an_editable_list_and_a_deletion(ada: Person, article: Article, site_name: str, atomic_requests: bool) -> None:
    address = f"/{site_name}/articles/article/"
    form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": article.pk, "form-0-section": "sport"}
    assert ada.client.post(address, {**form, **ada.open(address), "_save": "Save"}).status_code == 302
    assert Article.objects.get().section == "sport"
    address = f"{address}{article.pk}/delete/"
    assert ada.client.post(address, {**ada.open(address), "post": "yes"}).status_code == 302
    assert not Article.objects.exists()


def test_the_api(ada: Person, bo: Person, article: Article) -> None:
    ada.claim(ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    for person, status in ((bo, 423), (ada, 200)):
        data = {"body": "By the API."}
        done = person.client.patch(f"/atomic-api/{article.pk}/", data, content_type="application/json")
        assert done.status_code == status


def test_a_revert_needs_the_token_of_the_form(ada: Person, article: Article) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(ada.user)
    for page in (PAGES[0], REVERTS[0]):
        assert client.post(page.format(article.pk), {"title": "x", "body": "y"}).status_code == 403
    assert body() == "On Saturday."
