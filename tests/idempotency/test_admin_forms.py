"""The admin's add forms with ``IdempotentAdmin``: a double click makes one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.urls import path

from django_distlock.editing import EditLockAdmin
from django_distlock.idempotency import IdempotentAdmin
from testproject.articles.models import Article, Source
from tests.idempotency import MIDDLEWARE
from tests.idempotency.world import Browser, Stage, hidden_fields, states

if TYPE_CHECKING:
    from collections.abc import Iterator

office = admin.AdminSite("admin")  # the name that the templates of the admin know


class SourceInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Source
    extra = 1


@admin.register(Article, site=office)
class ArticleAdmin(IdempotentAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    inlines = (SourceInline,)
    save_as = True


locked = admin.AdminSite("admin")


@admin.register(Article, site=locked)
class LockedArticleAdmin(EditLockAdmin, ArticleAdmin):
    pass


urlpatterns = [path("admin/", office.urls), path("locked/", locked.urls)]
ADD = "/admin/articles/article/add/"
TYPED = {
    **{"title": "Once", "body": "On Saturday.", "section": "news", "version": "1"},
    **{"sources-TOTAL_FORMS": "1", "sources-INITIAL_FORMS": "0"},
}


def made() -> Any:
    return Article.objects.filter(title__startswith="Once")


class Editor(Browser):
    """Somebody who may add articles."""

    def filled_in(self, address: str = ADD, **more: str) -> dict[str, Any]:
        html = self.shown(address)
        form = html[html.index('id="article_form"') :].partition("</form>")[0]
        return {**hidden_fields(form), **TYPED, **more}

    def press(self, fields: dict[str, Any], address: str = ADD) -> Any:
        return self.client.post(address, fields)


@pytest.fixture(params=[True, False], ids=["middleware", "alone"])
def editor(request: pytest.FixtureRequest, site: Stage, settings: Any) -> Iterator[Editor]:
    settings.MIDDLEWARE = MIDDLEWARE if request.param else MIDDLEWARE[:-1]
    user = User.objects.create_user("editor", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    found = Editor()
    found.client.force_login(user)
    yield found
    LogEntry.objects.all().delete()
    made().delete()
    user.delete()


@pytest.mark.parametrize("button", ["_save", "_addanother", "_continue"])
def test_a_double_click_makes_one_object(editor: Editor, button: str) -> None:
    """With its inline and one entry in the log; both presses end on the same page, with its message."""
    fields = editor.filled_in(**{button: "Save", "sources-0-name": "The mayor"})
    first, second = editor.press(fields), editor.press(fields)
    assert (first.status_code, second["Location"]) == (302, first["Location"])
    assert second["Idempotency-Replayed"] == "true"
    assert "was added successfully" in editor.shown(second["Location"])
    assert [made().count(), Source.objects.count(), LogEntry.objects.count()] == [1, 1, 1]
    assert editor.press(editor.filled_in()).status_code == 302, "the next form has a key of its own"
    assert made().count() == 2


def test_beside_edit_locks(editor: Editor) -> None:
    address = ADD.replace("admin", "locked")
    fields = editor.filled_in(address)
    assert [editor.press(fields, address).status_code for _ in range(2)] == [302, 302]
    (article,) = made()
    change_form = f"/locked/articles/article/{article.pk}/change/"
    assert editor.press(editor.filled_in(change_form, title="Once changed"), change_form).status_code == 302
    assert [each.title for each in made()] == ["Once changed"]


def test_a_popup_adds_once_and_answers_twice(editor: Editor) -> None:
    """Its success is a page, which would leave the key free."""
    address = f"{ADD}?_popup=1"
    fields = editor.filled_in(address)
    first, second = (editor.press(fields, address) for _ in range(2))
    assert b"popup_response" in first.content
    assert (first.content, second["Idempotency-Replayed"]) == (second.content, "true")
    assert made().count() == 1


def test_save_as_new_and_plain_changes(editor: Editor) -> None:
    article = Article.objects.create(title="Once", body="On Saturday.")
    address = f"/admin/articles/article/{article.pk}/change/"
    fields = editor.filled_in(address, _saveasnew="Save as new")
    assert [editor.press(fields, address).status_code for _ in range(2)] == [302, 302]
    assert made().count() == 2
    for title in ("Once a tunnel", "Once a ferry"):
        assert editor.press({**editor.filled_in(address), "title": title}, address).status_code == 302
    article.refresh_from_db()
    assert article.title == "Once a ferry"


def test_who_may_no_longer_add_gets_no_answer(editor: Editor) -> None:
    """Also not the stored one; and without a CSRF token nobody does."""
    fields = editor.filled_in()
    editor.press(fields)
    assert editor.press({**fields, "csrfmiddlewaretoken": ""}).status_code == 403
    User.objects.get().user_permissions.clear()
    assert editor.press(fields).status_code == 403


@pytest.mark.parametrize("atomic_requests", [False, True])
def test_an_error_leaves_nothing_behind(editor: Editor, monkeypatch: pytest.MonkeyPatch, atomic_requests: bool) -> None:
    """Key and object are one transaction."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic_requests)
    editor.client.raise_request_exception = False
    fields = editor.filled_in()
    with monkeypatch.context() as patch:
        patch.setattr(ArticleAdmin, "log_addition", lambda *args: 1 / 0)
        assert editor.press(fields).status_code == 500
    assert (made().count(), states("default")) == (0, [])
    assert editor.press(fields).status_code == 302
