"""Two people in Django's admin, in Chromium, Firefox and WebKit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_distlock.editing.http.permissions import Gate
from testproject.articles.models import Article, Source
from testproject.articles.people import person as user

from .steps import BANNER, BODY, allowed, banner, busy, held, offered, read_only, save, type_and_hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.browsers import Tab

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers
LIST = "/admin/articles/article/"


def change(someone: Person, article: Article, query: str = "") -> Tab:
    return someone.open(f"{LIST}{article.pk}/change/{query}")


def exists(article: Article) -> bool:
    return Article.objects.filter(pk=article.pk).exists()


def test_save_and_continue_keeps_the_lock(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    mine, theirs = change(ada, article), change(bo, article)
    type_and_hold(mine, " First.")
    busy(theirs, "Ada")
    before = mine.value("[name=distlock_edit_lease]")
    save(mine, "[name=_continue]")
    held(mine)
    assert mine.value("[name=distlock_edit_lease]") != before
    assert saved() == "On Saturday. First."
    busy(theirs, "Ada")
    type_and_hold(mine, " Second.")
    save(mine, "[name=_save]")
    banner(theirs, "Ada has saved this meanwhile")
    assert saved() == "On Saturday. First. Second."


def test_a_key_in_an_inline_takes_the_lock_of_all_of_it(ada: Person, bo: Person, article: Article) -> None:
    mine, theirs = change(ada, article), change(bo, article)
    type_and_hold(mine, "The Times", "[name=sources-0-name]")
    busy(theirs, "Ada")
    assert read_only(theirs, "[name=sources-0-name]")
    save(mine, "[name=_save]")
    assert list(Source.objects.values_list("name", flat=True)) == ["The Times"]
    banner(theirs, "has saved this meanwhile")


@pytest.mark.alike
def test_a_row_that_is_added_to_an_inline_is_locked_too(ada: Person, bo: Person, article: Article) -> None:
    """Django's own script adds it; a save of it is refused like any other."""
    theirs = change(bo, article)
    theirs.click(".add-row a")
    type_and_hold(change(ada, article))
    busy(theirs, "Ada")
    assert read_only(theirs, "[name=sources-1-name]")


def test_a_popup_says_why_it_is_locked(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    mine, theirs = change(ada, article, "?_popup=1"), change(bo, article, "?_popup=1")
    type_and_hold(mine, " In a popup.")
    busy(theirs, "Ada")
    mine.click("[name=_save]")
    mine.until(lambda: saved() == "On Saturday. In a popup.", "it was not saved")
    banner(theirs, "has saved this meanwhile")


@pytest.mark.alike
def test_the_list_says_who_edits_and_keeps_its_rows_from_being_destroyed(
    ada: Person, bo: Person, article: Article
) -> None:
    other = Article.objects.create(title="Another one", body="-")
    type_and_hold(change(ada, article))
    listed = bo.open(LIST)
    row = f"tr:has(.action-select[value='{article.pk}'])"
    assert listed.text(f"{row} .field-being_edited_by") == "Ada"
    listed.click(f"{row} [name$=published]")
    save(listed, "[name=_save]")
    assert "Ada" in listed.text("[role=alert]")
    assert not Article.objects.get(pk=article.pk).published
    # a row that nobody edits is saved
    listed.open(f"{bo.url}{LIST}")
    listed.click(f"tr:has(.action-select[value='{other.pk}']) [name$=published]")
    save(listed, "[name=_save]")
    assert Article.objects.get(pk=other.pk).published


@pytest.mark.alike
def test_a_bulk_action_spares_what_somebody_edits(ada: Person, bo: Person, article: Article) -> None:
    type_and_hold(change(ada, article))
    listed = bo.open(LIST)
    listed.click(f".action-select[value='{article.pk}']")
    listed.run("document.querySelector('[name=action]').value = 'delete_selected'")
    save(listed, "[name=index]")
    if "Ada" not in listed.text("body"):  # asked first
        save(listed, "[type=submit]")
    assert "Ada" in listed.text("body")
    assert exists(article)


@pytest.mark.alike
def test_a_deletion_spares_what_somebody_edits(ada: Person, bo: Person, article: Article) -> None:
    mine = change(ada, article)
    type_and_hold(mine)
    theirs = bo.open(f"{LIST}{article.pk}/delete/")
    banner(theirs, "Ada is editing this")
    theirs.run("HTMLFormElement.prototype.submit.call(document.querySelector('form:has([name=post])'))")
    theirs.until(lambda: "Nothing was done" in theirs.text("h1"), "the deletion was not refused")
    assert exists(article)
    assert not read_only(mine)


@pytest.mark.alike
def test_a_permission_that_is_taken_away(ada: Person, bo: Person, article: Article) -> None:
    mine, theirs = change(ada, article), change(bo, article)
    type_and_hold(mine, " Kept.")
    busy(theirs, "Ada")
    permissions = user("ada").user_permissions
    removed = permissions.filter(codename="change_article").get()
    permissions.remove(removed)
    try:
        Gate.forget()
        banner(mine, "You may no longer edit this")
        assert read_only(mine)
        assert mine.value(BODY) == "On Saturday. Kept."
        banner(theirs, "You can edit this now")
    finally:
        permissions.add(removed)


@pytest.mark.alike
def test_an_object_that_is_deleted_meanwhile(ada: Person, article: Article) -> None:
    mine = change(ada, article)
    type_and_hold(mine, " Kept.")
    Article.objects.filter(pk=article.pk).delete()
    banner(mine, "deleted")
    assert mine.value(BODY) == "On Saturday. Kept."
    save(mine, "[name=_save]")
    assert "deleted" in mine.text("[role=alert]")
    assert "On Saturday. Kept." in mine.run("return document.documentElement.outerHTML")
    assert not exists(article)


@pytest.mark.alike
def test_a_takeover(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    with allowed("bo", "takeover_editlease"):
        mine, theirs = change(ada, article), change(bo, article)
        type_and_hold(mine, " By Ada.")
        busy(theirs, "Ada")
        theirs.click("[data-distlock-action=take_over]")
        theirs.type(f"{BANNER} input", "Deadline")
        theirs.click("[data-distlock-action=confirm]")
        held(theirs)
        theirs.type(BODY, " By Bo.")
        save(theirs, "[name=_save]")
        banner(mine, "Bo has taken over")
        assert saved() == "On Saturday. By Bo."
        history = bo.open(f"{LIST}{article.pk}/history/").text("#change-history")
        assert "Deadline" in history
        mine.reload()
        offered(mine, "against an older version")
