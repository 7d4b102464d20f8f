"""Options of one admin, view or tag count at beats and saves too; the others are refused there."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin
from django.core.exceptions import ImproperlyConfigured
from django.template import Context, Template
from django.urls import path

from django_distlock.editing import EditLockAdmin, edit_locked
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import Person, is_held
from tests.support.findings import findings

SITE_WIDE = {
    "TTL": 120,
    "BEAT": 5,
    "FORM_TTL": 3600,
    "LABEL": str,
    "DATABASE": "default",
    "MAX_HELD": 1,
}
asked: list[tuple[Any, Any, Any]] = []


def never(user: Any, obj: Any, holder: Any) -> bool:
    asked.append((user.username, obj, holder))
    return False


class Strict(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    edit_lock = {"TAKEOVER": never}  # noqa: RUF012


class StrictEdit(views.Edit):
    edit_lock = {"TAKEOVER": never}  # noqa: RUF012


class Eager(views.Edit):
    edit_lock = {"WHEN": "open", "IDLE": 333}  # noqa: RUF012


class EagerAdmin(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    edit_lock = {"WHEN": "open", "IDLE": 333}  # noqa: RUF012


urlpatterns = [
    views.beats,
    views.admin_site("strict", (Article, Strict)),
    path("view/<int:pk>/", StrictEdit.as_view()),
    path("function/<int:pk>/", views.locked(takeover=lambda request, obj: never(request.user, obj, None))),
    path("eager/<int:pk>/", Eager.as_view()),
    path("eager-function/<int:pk>/", views.locked(when="open", idle=333)),
    views.admin_site("eager-admin", (Article, EagerAdmin)),
    path("edit/<int:pk>/", views.Edit.as_view()),
]
PAGES = ["/strict/articles/article/{pk}/change/", "/view/{pk}/", "/function/{pk}/"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("address", PAGES)
def test_takeover_of_one_page(ada: Person, boss: Person, article: Article, address: str) -> None:
    address = address.format(pk=article.pk)
    grant, theirs = ada.open(address)["distlock_edit"], boss.open(address)
    lease = ada.claim(grant)
    answer = boss.ask("claim", theirs["distlock_edit"], lease=secrets.token_hex(16))
    assert (answer["state"], answer["can_take_over"]) == ("busy", False)
    assert boss.ask("takeover", theirs["distlock_edit"], lease=secrets.token_hex(16))["state"] == "error"
    assert asked[-1][:2] == ("boss", article)
    posted = {"title": "By the boss", "body": "x", "section": "news", **theirs, "distlock_edit_choice": "overwrite"}
    posted |= {"sources-TOTAL_FORMS": "0", "sources-INITIAL_FORMS": "0"}
    assert boss.client.post(address, posted).status_code == 409
    assert ada.ask("renew", grant, lease=lease)["state"] == "held"


@pytest.mark.usefixtures("site")
def test_options_of_one_page_are_in_its_form(ada: Person, article: Article) -> None:
    for address in ("/eager/{pk}/", "/eager-function/{pk}/", "/eager-admin/articles/article/{pk}/change/"):
        page = ada.client.get(address.format(pk=article.pk)).content.decode()
        assert 'data-idle="333"' in page
        assert is_held(article)
        EditLeaseRow.rows.all().delete()


def test_an_option_of_the_whole_site_is_refused_in_one_view() -> None:
    for name, value in SITE_WIDE.items():
        options = {"edit_lock": {name: value}}
        with pytest.raises(ImproperlyConfigured, match=name):
            type("View", (views.Edit,), options).as_view()
        with pytest.raises(ImproperlyConfigured, match=name):
            views.Edit.as_view(**options)
        with pytest.raises(ImproperlyConfigured, match=name):
            type("Views", (views.ArticleViewSet,), options).as_view(views.one)
        with pytest.raises(ImproperlyConfigured, match=name):
            edit_locked(Article, **{name.lower(): value})
    allowed = {"MODE": "warn", "WHEN": "open", "IDLE": 5, "TTL_WITHOUT_SCRIPT": 5, "TAKEOVER": never}
    type("View", (views.Edit,), {"edit_lock": allowed}).as_view()


def test_an_option_of_the_whole_site_is_an_error_of_the_check_in_one_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    def errors() -> list[Any]:
        return [message for message in findings() if message.id == "distlock.E072"]

    # another admin may have such an attribute: a column, for example
    monkeypatch.setattr(GroupAdmin, "edit_lock", lambda self, obj: "x", raising=False)
    assert not errors()
    for name in ("TTL", "IDEL"):
        monkeypatch.setattr(Strict, "edit_lock", {name: 5})
        (found,) = errors()
        assert found.obj == Strict
        assert name in found.msg


@pytest.mark.usefixtures("site")
def test_an_option_of_the_whole_site_is_refused_in_one_tag(ada: Person, article: Article, rf: Any) -> None:
    request = rf.get("/")
    request.user, request.session = ada.user, ada.client.session
    for name in ("ttl", "beat", "max_held", "takeover", "idel"):
        template = Template(f"{{% load editing %}}{{% edit_lock article {name}=5 %}}")
        with pytest.raises(ImproperlyConfigured, match=name.upper()):
            template.render(Context({"article": article, "request": request}))
    assert not is_held(article)
