"""The list of the admin: the column, the filter, editable rows, actions; the page of held locks; a plain suite."""

from __future__ import annotations

import re
from typing import Any

import django
import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from testproject.articles.models import Article
from tests.editing.people import GRANT, Person, controls, refused

LIST = "/admin/articles/article/"


@pytest.fixture
def other(article: Article) -> Article:
    return Article.objects.create(title="A bakery closes", body="For good.")


@pytest.fixture
def path(article: Article) -> str:
    return f"{LIST}{article.pk}/change/"


@pytest.fixture(autouse=True)
def editable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(admin.site._registry[Article]), "list_editable", ("section",))


def rows(person: Person, address: str = LIST) -> dict[str, Any]:
    """What the editable list sends, if nothing is changed."""
    return controls(person.client.get(address), "changelist-form") | {"action": "", "_save": "Save"}


def set_section(form: dict[str, Any], article: Article, section: str) -> dict[str, Any]:
    number = next(
        key.split("-")[1] for key, value in form.items() if key.endswith("-id") and value == [str(article.pk)]
    )
    return {**form, f"form-{number}-section": section}


def sections() -> list[str]:
    return list(Article.objects.values_list("section", flat=True))


def test_rows_that_another_user_has_changed(ada: Person, bo: Person, article: Article, other: Article) -> None:
    """Whoever changes such a row gets the list again; who changes another one leaves it as it is: a plain admin would
    set it back to what the list had shown."""
    mine = rows(bo)
    assert ada.client.post(LIST, set_section(rows(ada), article, "sport")).status_code == 302
    answer = bo.client.post(LIST, set_section(mine, article, "culture"))
    refused(answer, "Somebody else has saved this since you opened the form.", "Saved now: Sport")
    assert bo.client.post(LIST, set_section(mine, other, "culture")).status_code == 302
    assert sections() == ["sport", "culture"]
    again = controls(answer, "changelist-form") | {"action": "", "_save": "Save"}
    assert bo.client.post(LIST, again).status_code == 302
    assert sections() == ["culture", "culture"], "what was chosen, and what was not touched"


def test_a_list_with_errors_has_each_form_beside_its_object(bo: Person, article: Article, other: Article) -> None:
    """Although the list, by title, has another order by now."""
    by_title = f"{LIST}?o=1"
    mine = set_section(rows(bo, by_title), article, "culture")
    assert mine["form-1-id"] == [str(article.pk)]
    Article.objects.filter(pk=article.pk).update(section="sport", title="A. is first")
    listed = refused(bo.client.post(by_title, mine)).partition("A. is first</a>")[2]
    assert re.findall(r'<select name="form-(\d)-section"', listed) == ["1"]


def test_a_row_that_was_deleted(bo: Person, article: Article, other: Article) -> None:
    mine = set_section(rows(bo), other, "culture")
    article.delete()
    refused(bo.client.post(LIST, mine), "This was deleted since you opened the form.", "culture")


@pytest.mark.parametrize("mode", ["enforce", "warn"])
def test_a_row_that_another_user_edits(
    ada: Person, bo: Person, article: Article, other: Article, path: str, settings: Any, mode: str
) -> None:
    settings.DISTLOCK_EDITING = {"MODE": mode}
    ada.hold(path)
    done = bo.client.post(LIST, set_section(rows(bo), other, "sport"), follow=True)
    assert done.redirect_chain
    assert "although" not in done.content.decode(), "the row that Ada edits was not saved"
    answer = bo.client.post(LIST, set_section(rows(bo), article, "sport"), follow=True)
    if mode == "enforce":
        refused(answer)
    else:
        assert answer.content.decode().count("This was saved, although: Ada is editing this now.") == 1
    assert sections() == ["sport" if mode == "warn" else "news", "sport"]


def test_actions(ada: Person, bo: Person, article: Article, other: Article, path: str) -> None:
    ada.hold(path)
    chosen = {"action": "delete_selected", "_selected_action": [article.pk, other.pk]}
    crafted = {"action": ["", "delete_selected"], "index": "5", "post": "yes"}  # Django takes the last one
    for more in ({}, {"post": "yes"}, crafted, {"_selected_action": [other.pk], "select_across": "true"}):
        text = bo.client.post(LIST, {**chosen, **more}, follow=True).content.decode()
        assert "Nothing was done" in text, more
        assert "article “A bridge opens”: Ada is editing this now." in text
    alone = {**chosen, "_selected_action": [other.pk], "post": "yes"}
    assert bo.client.post(LIST, alone).status_code == 302
    assert list(Article.objects.all()) == [article]
    bo.user.user_permissions.remove(*bo.user.user_permissions.filter(codename="delete_article"))
    answer = Person(bo.user).client.post(LIST, chosen, follow=True)
    assert answer.status_code == 200
    assert "Nothing was done" not in answer.content.decode(), "what one may not run says nothing"
    assert ada.client.post(LIST, {**chosen, "post": "yes"}).status_code == 302, "one's own lock is no hindrance"
    assert not Article.objects.exists()


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Actions of the change form came with Django 6.1")
def test_an_action_of_the_change_form(
    ada: Person, bo: Person, article: Article, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(model_admin: Any, request: Any, queryset: Any) -> None:
        queryset.update(published=True)

    publish.locations = [admin.ActionLocation.CHANGE_FORM]
    monkeypatch.setattr(type(admin.site._registry[Article]), "actions", (publish,))
    chosen = {"CHANGE_FORM-action": ["", "publish"], "_selected_action": [article.pk], "index": "0"}
    fields, mine = bo.open(path), ada.hold(path)
    for _ in range(2):
        assert "Nothing was done" in bo.client.post(path, {**chosen, **fields}, follow=True).content.decode()
        bo.user.user_permissions.remove(*bo.user.user_permissions.filter(codename="change_article"))
    assert not Article.objects.get().published
    assert ada.client.post(path, {**chosen, **mine}).status_code == 302
    assert Article.objects.get().published


def test_who_edits_what(ada: Person, bo: Person, article: Article, other: Article, path: str) -> None:
    ada.hold(path)
    with CaptureQueriesContext(connection) as queries:
        text = bo.client.get(LIST).content.decode()
    assert 'field-being_edited_by">Ada<' in text
    assert text.count('field-being_edited_by">-<') == 1
    assert len([query for query in queries if "weblease" in query["sql"]]) == 1
    for choice, found in {"yes": 1, "no": 1, "me": 0, "others": 1}.items():
        response = bo.client.get(LIST, {"being_edited": choice})
        assert (choice, len(response.context["cl"].result_list)) == (choice, found)


def test_what_a_suite_for_a_plain_admin_does(boss: Person, article: Article) -> None:
    """Its forms lack the hidden field."""
    family = "/family/articles/article/"
    row = {"sources-TOTAL_FORMS": "1", "sources-0-name": "The mayor"}
    change = f"{family}{article.pk}/change/"
    assert boss.save(change, {}, title="Changed", body="...", **row)["Location"] == family
    assert LogEntry.objects.get().get_change_message() == "Changed Title and Body. Added source “The mayor”."
    assert GRANT not in boss.open(f"{family}add/")
    for address, more in ((change, {"_saveasnew": "1"}), (f"{family}add/", {})):
        assert boss.save(address, {}, **row, **more).status_code == 302
    Article.objects.exclude(pk=article.pk).delete()
    for page in ("change", "delete"):
        for method in (boss.client.get, boss.client.post):
            assert method(f"{family}0/{page}/").status_code == 302
    form = set_section(rows(boss, family), article, "sport")
    del form[GRANT]
    assert b"1 article was changed successfully." in boss.client.post(family, form, follow=True).content
    assert sections() == ["sport"]
