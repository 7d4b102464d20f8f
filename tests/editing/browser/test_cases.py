"""Two people, one article, in Chromium, Firefox and WebKit: the browser cases of the design."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session

from django_distlock.models import EditLeaseRow
from testproject.articles.people import person as user
from tests.support.timing import within

from .conftest import RESERVED, TIMES, person
from .steps import BANNER, BODY, allowed, banner, busy, held, offered, read_only, save, type_and_hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from testproject.articles.models import Article

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers


def test_reading_locks_nothing_and_the_first_key_does(ada: Person, bo: Person, article: Article) -> None:
    mine, theirs = ada.edit(article), bo.edit(article)
    time.sleep(TIMES["BEAT"] * 2)
    assert not read_only(mine)
    assert not read_only(theirs)
    type_and_hold(mine)
    busy(theirs, "Ada")
    assert not read_only(mine)


def test_what_is_locked_can_be_read_and_not_changed(ada: Person, bo: Person, article: Article) -> None:
    type_and_hold(ada.edit(article))
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    before = theirs.value(BODY)
    for selector in (BODY, "[name=title]", "[name=section]"):
        theirs.type(selector, "Sport")
    theirs.click("[name=published]")
    assert theirs.value(BODY) == before
    assert theirs.value("[name=section]") == "news"
    assert theirs.run("return document.querySelector('[name=published]').checked") is False
    assert theirs.run("return document.querySelectorAll('form :disabled').length") == 0
    assert theirs.run("return document.querySelector(arguments[0]).getAttribute('aria-readonly')", BODY) == "true"


@pytest.mark.alike
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


def test_leaving_without_a_save_frees_it_within_six_seconds(
    ada: Person, bo: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real five seconds
    mine = ada.edit(article)
    type_and_hold(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    mine.open(f"{ada.url}/articles/")
    left = time.monotonic()
    banner(theirs, "You can edit this now")
    within(time.monotonic() - left, 5 + TIMES["BEAT"] + 2)
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


def test_a_reload_keeps_the_lock(ada: Person, bo: Person, article: Article) -> None:
    mine = ada.edit(article)
    type_and_hold(mine)
    before = mine.value("[name=distlock_edit_lease]")
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    mine.reload()
    held(mine)
    assert mine.value("[name=distlock_edit_lease]") != before
    time.sleep(RESERVED + TIMES["BEAT"])
    busy(theirs, "Ada")
    assert "tab" not in mine.text(BANNER)
    assert not read_only(mine)


def test_unsaved_text_is_offered_after_a_reload(ada: Person, article: Article) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " Unsaved.")
    mine.reload()
    offered(mine, "that was not saved")
    assert mine.value(BODY) == "On Saturday."
    mine.click("[data-distlock-action=put_back]")
    assert mine.value(BODY) == "On Saturday. Unsaved."


@pytest.mark.alike
def test_a_form_with_errors_keeps_the_lock(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " After an error.")
    mine.run("document.querySelector('[name=title]').removeAttribute('required')")
    mine.run("document.querySelector('[name=title]').value = ''")
    save(mine)
    assert mine.value(BODY) == "On Saturday. After an error."
    held(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    mine.type("[name=title]", "A bridge")
    save(mine)
    assert saved() == "On Saturday. After an error."


def test_back_to_the_form(ada: Person, bo: Person, article: Article) -> None:
    mine = ada.edit(article)
    type_and_hold(mine)
    mine.open(f"{ada.url}/articles/")
    mine.back()
    mine.until(lambda: mine.run("return !!document.querySelector(arguments[0])", BODY), "the form did not come back")
    held(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    assert not read_only(mine)


@pytest.mark.alike
def test_two_tabs_of_one_person(ada: Person, article: Article) -> None:
    first, second = ada.edit(article), ada.edit(article)
    type_and_hold(first)
    banner(second, "in another tab")
    assert read_only(second)
    second.click("[data-distlock-action=edit_here]")
    held(second)
    assert not read_only(second)
    banner(first, "You continue in another tab")
    assert read_only(first)
    assert first.value(BODY) == "On Saturday. Typed."


def test_a_duplicated_tab_is_another_tab(ada: Person, article: Article) -> None:
    first = ada.edit(article)
    type_and_hold(first)
    stored = first.run("return Object.entries(sessionStorage)")
    second = ada.open("/articles/")
    second.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    second.open(f"{ada.url}/articles/{article.pk}/")
    banner(second, "in another tab")
    assert first.run("return sessionStorage['distlock.tab']") != second.run("return sessionStorage['distlock.tab']")
    time.sleep(TIMES["BEAT"] * 2)
    assert not read_only(first)


@pytest.mark.alike
def test_a_killed_browser_blocks_until_the_ttl(
    ada: Person, bo: Person, article: Article, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["people"]
    with person(name, ada.url, "ada") as other:
        type_and_hold(other.edit(article))
        theirs = bo.edit(article)
        busy(theirs, "Ada")
        other.profile.kill()
        killed = time.monotonic()
        banner(theirs, "You can edit this now")
        within(time.monotonic() - killed, TIMES["TTL"] + TIMES["BEAT"] + 2)
    type_and_hold(theirs)


def test_a_browser_that_slept_beyond_the_ttl(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    """Nobody came: it goes on silently. Somebody came and saved: it says so, and the save keeps both."""
    mine = ada.edit(article)
    type_and_hold(mine, " Before the sleep.")
    sleep(ada, TIMES["TTL"] + 1)
    type_and_hold(mine, " After it.")
    time.sleep(TIMES["BEAT"] + 1)
    assert not read_only(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")  # now, for a page that comes late would find no lock any more
    ada.profile.send_signal(signal.SIGSTOP)
    try:
        theirs.until(lambda: not read_only(theirs), "the lock did not end", TIMES["TTL"] + 10)
        theirs.type(BODY, " By Bo.")
        held(theirs)
        save(theirs)
    finally:
        ada.profile.send_signal(signal.SIGCONT)
    assert saved() == "On Saturday. By Bo."
    banner(mine, "meanwhile")
    assert mine.value(BODY) == "On Saturday. Before the sleep. After it."
    mine.run("document.querySelector('form').requestSubmit()")
    mine.until(lambda: "By Bo." in mine.text("body") and "After it." in mine.text("body"), "a version is missing")
    assert saved() == "On Saturday. By Bo."


def sleep(someone: Person, seconds: float) -> None:
    someone.profile.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    someone.profile.send_signal(signal.SIGCONT)


@pytest.mark.alike
def test_a_takeover_over_dirty_text(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    with allowed("bo", "takeover_editlease"):
        mine, theirs = ada.edit(article), bo.edit(article)
        type_and_hold(mine, " Dirty.")
        busy(theirs, "Ada")
        theirs.click("[data-distlock-action=take_over]")
        theirs.type(f"{BANNER} input", "Ada is on holiday")
        theirs.click("[data-distlock-action=confirm]")
        held(theirs)
        banner(mine, "Bo has taken over")
        assert read_only(mine)
        assert mine.value(BODY) == "On Saturday. Dirty."
        theirs.type(BODY, " By Bo.")
        save(theirs)
        assert saved() == "On Saturday. By Bo."
        mine.reload()
        offered(mine, "against an older version")


@pytest.mark.alike
def test_an_idle_form_is_given_back_and_taken_again(ada: Person, bo: Person, article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {**TIMES, "IDLE": 3}
    mine = ada.edit(article)
    type_and_hold(mine)
    banner(mine, "Are you still editing?")
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    # the 30 seconds of the warning pass at once
    mine.run("const { Date } = window; const now = Date.now; Date.now = () => now() + 30_000")
    banner(mine, "was given back")
    banner(theirs, "You can edit this now")
    assert mine.value(BODY) == "On Saturday. Typed."
    type_and_hold(mine, " Again.")
    busy(theirs, "Ada")


@pytest.mark.alike
def test_the_end_of_the_session(ada: Person, article: Article, saved: Callable[[], str]) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " Kept.")
    cookies = ada.home.run("return document.cookie")
    assert "sessionid" not in cookies  # HttpOnly: the server ends it
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


@pytest.mark.alike
def test_a_deleted_object(ada: Person, article: Article) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " Kept.")
    type(article).objects.filter(pk=article.pk).delete()
    banner(mine, "deleted")
    assert mine.value(BODY) == "On Saturday. Kept."


@pytest.mark.alike
def test_a_cut_network(ada: Person, bo: Person, article: Article, saved: Callable[[], str]) -> None:
    """Requests fail for longer than the TTL; nobody came, so the save goes through."""
    mine = ada.edit(article)
    type_and_hold(mine, " Offline.")
    mine.run("window.fetch0 = window.fetch; window.fetch = () => Promise.reject(new TypeError('cut'))")
    banner(mine, "No connection")
    assert not read_only(mine)
    mine.run("window.fetch = window.fetch0")
    mine.until(lambda: not mine.text(BANNER), "the banner stays")
    save(mine)
    assert saved() == "On Saturday. Offline."


@pytest.mark.alike
def test_a_foreign_write_meanwhile(ada: Person, article: Article, saved: Callable[[], str]) -> None:
    """A shell writes without a lock: the save is refused, both versions are shown, and one more press saves."""
    mine = ada.edit(article)
    type_and_hold(mine, " By Ada.")
    type(article).objects.filter(pk=article.pk).update(body="By a shell.")
    save(mine)
    assert saved() == "By a shell."
    text = mine.text("body")
    assert "By a shell." in text
    assert "By Ada." in mine.run("return document.documentElement.outerHTML")
