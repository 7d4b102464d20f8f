"""Two people, one article, in real browsers: what they type, lose, get back and see."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from django.contrib.sessions.models import Session

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article, Source
from testproject.articles.people import person as user
from tests.support.wire import wire

from .steps import BANNER, BODY, allowed, banner, busy, held, offered, page, read_only, save, take_over, type_and_hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from .conftest import Person

pytestmark = pytest.mark.tier2
RELEASE = "/distlock/editing/release/"
LIST = "/admin/articles/article/"


def is_release(request: HttpRequest) -> bool:
    return request.path == RELEASE


@pytest.mark.everywhere
def test_reading_locks_nothing_and_the_first_key_does(ada: Person, bo: Person, article: Article) -> None:
    """What is locked can be read and not changed."""
    mine, theirs = ada.edit(article), bo.edit(article)
    for name in ("ada", "bo"):
        wire.until_seen(name, "/distlock/editing/beat/")
    assert not read_only(mine)
    assert not read_only(theirs)
    type_and_hold(mine)
    busy(theirs, "Ada")
    assert not read_only(mine)
    before = theirs.value(BODY)
    for selector in (BODY, "[name=title]", "[name=section]"):
        theirs.type(selector, "Sport")
    theirs.click("[name=published]")
    assert theirs.value(BODY) == before
    assert theirs.value("[name=section]") == "news"
    assert theirs.run("return document.querySelector('[name=published]').checked") is False
    assert theirs.run("return document.querySelectorAll('form :disabled').length") == 0
    assert theirs.run("return document.querySelector(arguments[0]).getAttribute('aria-readonly')", BODY) == "true"


def test_a_save_gives_it_to_the_next_who_sees_the_new_version_first(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " By Ada.")
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    save(mine)
    assert saved().endswith("By Ada.")
    banner(theirs, "has saved this meanwhile")
    assert read_only(theirs)
    theirs.follow(lambda: theirs.click("[data-distlock-action=reload]"))
    type_and_hold(theirs, " And Bo.")
    save(theirs)
    assert saved() == "On Saturday. By Ada. And Bo."


@pytest.mark.everywhere
def test_leaving_frees_it_and_back_takes_it_again(ada: Person, bo: Person, article: Article) -> None:
    mine = ada.edit(article)
    type_and_hold(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    mine.open(f"{ada.url}/articles/")
    wire.until_seen("ada", RELEASE)
    mine.back()
    mine.until(lambda: mine.run("return !!document.querySelector(arguments[0])", BODY), "the form did not come back")
    held(mine)
    busy(theirs, "Ada")
    assert not read_only(mine)
    mine.open(f"{ada.url}/articles/")
    banner(theirs, "You can edit this now")
    assert not read_only(theirs)


def test_cancel_frees_it_at_once_and_forgets_what_was_typed(ada: Person, bo: Person, article: Article) -> None:
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine)
    busy(theirs, "Ada")
    mine.follow(lambda: mine.click("[data-distlock-cancel]"))
    mine.until(lambda: EditLeaseRow.rows.get(object_pk=str(article.pk)).lease == "", "it is reserved for Ada")
    banner(theirs, "You can edit this now")
    mine.open(f"{ada.url}/articles/{article.pk}/")
    mine.until(lambda: mine.value("[name=distlock_edit_tab]"), "the script does not run")
    assert not mine.text(".distlock-kept")


@pytest.mark.everywhere
def test_a_reload_keeps_the_lock_and_offers_the_text(ada: Person, bo: Person, article: Article) -> None:
    """The release of the old page comes behind the first beat of the new one, and frees nothing."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " Unsaved.")
    before = mine.value("[name=distlock_edit_lease]")
    busy(theirs, "Ada")
    with wire.held_back(is_release):
        mine.reload()
        held(mine)
        wire.seen.clear()
    wire.until_seen("ada", RELEASE)
    assert mine.value("[name=distlock_edit_lease]") != before
    assert EditLeaseRow.rows.get(object_pk=str(article.pk)).lease
    busy(theirs, "Ada")
    assert "tab" not in mine.text(BANNER)
    assert not read_only(mine)
    offered(mine, "that was not saved")
    assert mine.value(BODY) == "On Saturday."
    mine.click("[data-distlock-action=put_back]")
    assert mine.value(BODY) == "On Saturday. Unsaved."


@pytest.mark.everywhere
def test_a_tab_that_crashed_and_was_restored(ada: Person, bo: Person, article: Article) -> None:
    """No release came. It is the same tab: it adopts its own lease at once, and nobody is told "another tab"."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine)
    busy(theirs, "Ada")
    before = mine.value("[name=distlock_edit_lease]")
    ada.profile.crash_and_restore(mine)
    held(mine)
    assert mine.value("[name=distlock_edit_lease]") != before
    busy(theirs, "Ada")
    assert not read_only(mine)
    assert "another tab" not in mine.text(BANNER)


@pytest.mark.everywhere
def test_two_tabs_of_one_person_one_of_them_duplicated(ada: Person, article: Article) -> None:
    first = ada.edit(article)
    type_and_hold(first)
    stored = first.run("return Object.entries(sessionStorage)")
    second = ada.open("/articles/")
    second.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    second.open(f"{ada.url}/articles/{article.pk}/")
    banner(second, "in another tab")
    assert first.run("return sessionStorage['distlock.tab']") != second.run("return sessionStorage['distlock.tab']")
    assert read_only(second)
    assert not read_only(first)
    second.click("[data-distlock-action=edit_here]")
    held(second)
    assert not read_only(second)
    banner(first, "You continue in another tab")
    assert read_only(first)
    assert first.value(BODY) == "On Saturday. Typed."


def test_a_browser_that_slept_beyond_the_ttl(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    """Somebody came and saved: it says so, and the save keeps both."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " By Ada.")
    busy(theirs, "Ada")
    ada.profile.send_signal(signal.SIGSTOP)
    try:
        theirs.until(lambda: not read_only(theirs), "the lock did not end")
        type_and_hold(theirs, " By Bo.")
        save(theirs)
    finally:
        ada.profile.send_signal(signal.SIGCONT)
    banner(mine, "meanwhile")
    assert mine.value(BODY) == "On Saturday. By Ada."
    mine.run("document.querySelector('form').requestSubmit()")
    mine.until(lambda: "By Bo." in mine.text("body") and "By Ada." in page(mine), "a version is missing")
    assert saved() == "On Saturday. By Bo."


def test_a_network_that_is_away(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    """Nothing is taken away from the page; somebody came meanwhile, and nothing of either text is lost."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " Offline.")
    busy(theirs, "Ada")
    ada.profile.offline(mine, True)
    banner(mine, "No connection")
    assert not read_only(mine)
    banner(theirs, "You can edit this now")
    type_and_hold(theirs, " By Bo.")
    save(theirs)
    mine.type(BODY, " Still offline.")
    ada.profile.offline(mine, False)
    banner(mine, "has saved this meanwhile")
    assert mine.value(BODY) == "On Saturday. Offline. Still offline."
    assert saved() == "On Saturday. By Bo."


def test_the_end_of_the_session(ada: Person, article: Article, saved: Callable[[], str]) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " Kept.")
    for session in Session.objects.all():
        if session.get_decoded().get("_auth_user_id") == str(user("ada").pk):
            session.delete()
    banner(mine, "You are logged out")
    assert read_only(mine)
    assert mine.value(BODY) == "On Saturday. Kept."
    ada.home.open(f"{ada.url}/articles/")
    ada.home.follow(lambda: ada.home.click("[formaction='/articles/as/ada/']"))
    mine.until(lambda: not read_only(mine), "it did not go on after the log-in")
    save(mine)
    assert saved() == "On Saturday. Kept."


# in Django's admin


def test_save_and_continue_in_the_admin(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    """A key in an inline takes the lock of all of it; a row that Django's script adds is locked too."""
    address = f"{LIST}{article.pk}/change/"
    mine, theirs = ada.open(address), bo.open(address)
    theirs.click(".add-row a")
    type_and_hold(mine, "The Times", "[name=sources-0-name]")
    busy(theirs, "Ada")
    for number in (0, 1):
        assert read_only(theirs, f"[name=sources-{number}-name]")
    before = mine.value("[name=distlock_edit_lease]")
    save(mine, "[name=_continue]")
    held(mine)
    assert mine.value("[name=distlock_edit_lease]") != before
    assert list(Source.objects.values_list("name", flat=True)) == ["The Times"]
    busy(theirs, "Ada")
    type_and_hold(mine, " Second.")
    save(mine, "[name=_save]")
    banner(theirs, "Ada has saved this meanwhile")
    assert saved() == "On Saturday. Second."


def test_a_takeover_in_the_admin_and_an_object_that_is_deleted(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    address = f"{LIST}{article.pk}/change/"
    with allowed("bo", "takeover_editlease"):
        mine, theirs = ada.open(address), bo.open(address)
        type_and_hold(mine, " By Ada.")
        busy(theirs, "Ada")
        take_over(theirs, "Deadline")
        theirs.type(BODY, " By Bo.")
        save(theirs, "[name=_save]")
        banner(mine, "Bo has taken over")
        assert saved() == "On Saturday. By Bo."
        assert "Deadline" in bo.open(f"{LIST}{article.pk}/history/").text("#change-history")
    mine.reload()
    offered(mine, "against an older version")
    type_and_hold(mine, " Kept.")
    Article.objects.filter(pk=article.pk).delete()
    banner(mine, "deleted")
    save(mine, "[name=_save]")
    assert "deleted" in mine.text("[role=alert]")
    assert " Kept." in page(mine)
    assert not Article.objects.filter(pk=article.pk).exists()
