"""The list of the admin: the column, the filter, editable rows, actions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from testproject.articles.models import Article
from tests.editing.admin.test_change import address
from tests.editing.people import HIDDEN, is_held

if TYPE_CHECKING:
    from tests.editing.people import Person

LIST = reverse("admin:articles_article_changelist")


@pytest.fixture
def other(article: Article) -> Article:
    return Article.objects.create(title="A bakery closes", body="For good.")


def rows(person: Person) -> dict[str, Any]:
    """What the editable list sends, if nothing is changed."""
    response = person.client.get(LIST)
    text = response.content.decode()
    grants = [value for name, value in HIDDEN.findall(text) if name == "distlock_edit"]
    articles = list(response.context["cl"].result_list)
    assert len(grants) == len(articles)
    found: dict[str, Any] = {
        "form-TOTAL_FORMS": len(articles),
        "form-INITIAL_FORMS": len(articles),
        "distlock_edit": grants,
        "_save": "Save",
    }
    for number, article in enumerate(articles):
        found[f"form-{number}-id"] = article.pk
        found[f"form-{number}-section"] = article.section
    return found


def set_section(sent: dict[str, Any], article: Article, section: str) -> dict[str, Any]:
    number = next(key.split("-")[1] for key, value in sent.items() if key.endswith("-id") and value == article.pk)
    return {**sent, f"form-{number}-section": section}


@pytest.fixture(autouse=True)
def editable(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.contrib import admin

    monkeypatch.setattr(type(admin.site._registry[Article]), "list_editable", ("section",))


class TestEditableRows:
    def test_rows_that_another_user_has_changed(
        self, ada: Person, bo: Person, article: Article, other: Article
    ) -> None:
        """Whoever changes such a row is refused; who changes another one leaves it as it is: a plain admin would set
        it back to what the list had shown."""
        mine = rows(bo)
        assert ada.client.post(LIST, set_section(rows(ada), article, "sport")).status_code == 302
        refused = bo.client.post(LIST, set_section(mine, article, "culture"))
        assert refused.status_code == 409
        assert "A bridge opens" in refused.content.decode()
        assert "<button" not in refused.content.decode(), "a list cannot be shown again with what was chosen"
        assert bo.client.post(LIST, set_section(mine, other, "culture")).status_code == 302
        sections = dict(Article.objects.values_list("pk", "section"))
        assert sections == {article.pk: "sport", other.pk: "culture"}

    def test_the_mode_warn_speaks_of_the_rows_that_are_saved(
        self, ada: Person, bo: Person, article: Article, other: Article, settings: Any
    ) -> None:
        settings.DISTLOCK_EDITING = {"MODE": "warn"}
        ada.claim(ada.open(address(article))["distlock_edit"])
        mine = rows(bo)
        saved = bo.client.post(LIST, set_section(mine, other, "sport"), follow=True).content.decode()
        assert "although" not in saved
        mine = rows(bo)
        saved = bo.client.post(LIST, set_section(mine, article, "sport"), follow=True).content.decode()
        assert saved.count("This was saved, although: Ada is editing this now.") == 1
        article.refresh_from_db()
        assert article.section == "sport"

    def test_a_row_that_another_user_edits_is_refused(
        self, ada: Person, bo: Person, article: Article, other: Article
    ) -> None:
        ada.claim(ada.open(address(article))["distlock_edit"])
        mine = rows(bo)
        assert bo.client.post(LIST, set_section(mine, article, "sport")).status_code == 409
        done = bo.client.post(LIST, set_section(mine, other, "sport"), follow=True)
        assert done.redirect_chain
        assert "although" not in done.content.decode()  # the row that Ada edits was not saved
        sections = dict(Article.objects.values_list("pk", "section"))
        assert sections == {article.pk: "news", other.pk: "sport"}


class TestActions:
    def test_delete_selected_is_refused(self, ada: Person, bo: Person, article: Article, other: Article) -> None:
        ada.claim(ada.open(address(article))["distlock_edit"])
        chosen = {"action": "delete_selected", "_selected_action": [article.pk, other.pk]}
        crafted = {"action": ["", "delete_selected"], "index": "5", "post": "yes"}  # Django takes the last one
        for more in ({}, {"post": "yes"}, crafted):
            refused = bo.client.post(LIST, {**chosen, **more})
            assert refused.status_code == 409
            assert "Ada" in refused.content.decode()
        assert Article.objects.count() == 2
        alone = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
        assert bo.client.post(LIST, alone).status_code == 302
        assert Article.objects.count() == 1
        assert ada.client.post(LIST, {**chosen, "post": "yes"}).status_code == 302, "one's own lock is no hindrance"
        assert not Article.objects.exists()

    def test_one_that_a_user_may_not_run_says_nothing(self, ada: Person, bo: Person, article: Article) -> None:
        bo.user.user_permissions.remove(*bo.user.user_permissions.filter(codename="delete_article"))
        ada.claim(ada.open(address(article))["distlock_edit"])
        chosen = {"action": "delete_selected", "_selected_action": [article.pk], "post": "yes"}
        answer = bo.client.post(LIST, chosen, follow=True)
        assert answer.status_code == 200
        assert "Nothing was done" not in answer.content.decode()
        assert Article.objects.exists()

    @pytest.mark.skipif(django.VERSION < (6, 1), reason="Actions of the change form came with Django 6.1")
    def test_one_of_the_change_form(
        self, ada: Person, bo: Person, article: Article, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django.contrib import admin
        from django.contrib.admin import ActionLocation

        def publish(model_admin: Any, request: Any, queryset: Any) -> None:
            queryset.update(published=True)

        publish.locations = [ActionLocation.CHANGE_FORM]  # type: ignore[attr-defined]
        monkeypatch.setattr(type(admin.site._registry[Article]), "actions", (publish,))
        chosen = {"CHANGE_FORM-action": ["", "publish"], "_selected_action": [article.pk], "index": "0"}
        fields = bo.open(address(article))
        mine = ada.open(address(article))
        ada.claim(mine["distlock_edit"])
        assert bo.client.post(address(article), {**chosen, **fields}).status_code == 409
        bo.user.user_permissions.remove(*bo.user.user_permissions.filter(codename="change_article"))
        refused = bo.client.post(address(article), chosen)
        assert refused.status_code == 409
        assert "<button" not in refused.content.decode(), "nothing to send again"
        article.refresh_from_db()
        assert not article.published
        assert ada.client.post(address(article), {**chosen, **mine}).status_code == 302
        article.refresh_from_db()
        assert article.published


class TestColumnAndFilter:
    def test_who_edits_what(self, ada: Person, bo: Person, article: Article, other: Article) -> None:
        ada.claim(ada.open(address(article))["distlock_edit"])
        assert is_held(article)
        with CaptureQueriesContext(connection) as queries:
            text = bo.client.get(LIST).content.decode()
        assert 'field-being_edited_by">Ada<' in text
        assert text.count('field-being_edited_by">-<') == 1
        about = [query["sql"] for query in queries if "editlease" in query["sql"]]
        assert len(about) == 2  # the column, and the rows of the editable list
        for choice, found in {"yes": 1, "no": 1, "me": 0, "others": 1}.items():
            response = bo.client.get(LIST, {"being_edited": choice})
            assert (choice, len(response.context["cl"].result_list)) == (choice, found)


# the page of held locks

HELD = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break_edit")


@pytest.fixture(autouse=True)
def one_alias(settings: Any) -> None:
    """The list asks every alias: those that need a server have tests of their own."""
    settings.DISTLOCK = {"default": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}}


def test_names_are_for_those_who_may_see_the_object(ada: Person, bo: Person, boss: Person, article: Article) -> None:
    assert "distlock-edits" not in boss.client.get(HELD).content.decode()
    ada.claim(ada.open(address(article))["distlock_edit"])
    text = boss.client.get(HELD).content.decode()
    assert f'<a href="{address(article)}"><bdi>A bridge opens</bdi></a>' in text
    assert "<td><bdi>Ada</bdi></td>" in text
    bo.user.user_permissions.set(Permission.objects.filter(codename="view_heldlock"))
    text = bo.client.get(HELD).content.decode()
    assert "A bridge opens" not in text
    assert "Ada" in text
    assert "Break this edit lock" not in text
    assert bo.client.post(BREAK, {}).status_code == 403


def test_breaking(ada: Person, boss: Person, article: Article) -> None:
    grant = ada.open(address(article))["distlock_edit"]
    lease = ada.claim(grant)
    text = boss.client.get(HELD).content.decode().partition("distlock-edits")[2]
    shown = dict(re.findall(r'<input type="hidden" name="(database|model|pk|fence)" value="([^"]*)">', text))
    sent = {"reason": "gone\nhome", **shown}
    assert boss.client.post(BREAK, {**sent, "fence": "999"}).status_code == 302
    assert is_held(article)
    assert boss.client.post(BREAK, sent).status_code == 302
    assert not is_held(article)
    assert ada.ask("renew", grant, lease=lease)["reason"] == "broken"
    assert "gone home" in LogEntry.objects.get().change_message
    assert boss.client.post(BREAK, {**sent, "database": "none"}).status_code == 403
    assert boss.client.get(BREAK).status_code == 403
