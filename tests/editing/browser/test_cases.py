"""Two people, one article, in real browsers: what they type, lose, get back and see."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from django.contrib.sessions.models import Session

from django_distlock.leases import upkeep
from django_distlock.models import WebLease
from testproject.articles.models import Article, Source
from tests.support import axe
from tests.support.browsers import OTHER_NAME
from tests.support.wire import REPORTS, wire

from .conftest import TIMES, user_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.browsers import Tab

    from .conftest import Person

pytestmark = pytest.mark.tier2
LIST = "/admin/articles/article/"
NO_SCRIPTS = "script-src 'none'"  # those of the tests run all the same
BANNER, KEPT, BODY, LEASE = ".distlock-banner", ".distlock-kept", "[name=body]", "[name=distlock_edit_lease]"


def held(tab: Tab) -> None:
    tab.until(lambda: tab.value(LEASE), "the lock was not taken")


def type_and_hold(tab: Tab, text: str = " Typed.", selector: str = BODY) -> None:
    tab.type(selector, text)
    held(tab)


def banner(tab: Tab, text: str, box: str = BANNER) -> None:
    tab.until(lambda: text in tab.text(box), lambda: f"{box} does not say {text!r} but {tab.text(box)!r}")


def read_only(tab: Tab, selector: str = BODY) -> bool:
    return bool(tab.run("return document.querySelector(arguments[0]).readOnly", selector))


def busy(tab: Tab, who: str = "Ada") -> None:
    banner(tab, f"{who} is editing this")
    assert read_only(tab)


def meet(ada: Person, bo: Person, path: str, text: str = " Typed.") -> tuple[Tab, Tab]:
    """Both open the form; she types, and he sees it."""
    mine, theirs = ada.open(path), bo.open(path)
    type_and_hold(mine, text)
    busy(theirs)
    return mine, theirs


def take_over(tab: Tab, reason: str = "") -> None:
    tab.click("[data-distlock-action=take_over]")
    if reason:
        tab.type(f"{BANNER} input", reason)
    tab.click("[data-distlock-action=confirm]")
    held(tab)


def save(tab: Tab, selector: str = "form button:not([type]), [name=_save]") -> None:
    tab.follow(lambda: tab.click(selector))


def copy_of(tab: Tab, to: Tab, address: str) -> None:
    """What "Duplicate" does: the other tab has the storage of this one."""
    stored = tab.run("return Object.entries(sessionStorage)")
    to.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    to.open(address)
    banner(to, "in another tab")


def page(tab: Tab) -> str:
    """All of it, with what stands in fields."""
    return str(tab.run("return document.documentElement.outerHTML"))


def leases() -> list[str]:
    return list(WebLease.rows.exclude(lease="").values_list("lease", flat=True))


@pytest.mark.everywhere
def test_e17_e19_reading_locks_nothing_and_the_first_key_does(ada: Person, bo: Person, path: str) -> None:
    """What is locked can be read and not changed."""
    mine, theirs = ada.open(path), bo.open(path)
    for name in ("ada", "bo"):
        wire.until_seen(name, f"{path} watch")
    assert (read_only(mine), read_only(theirs)) == (False, False)
    type_and_hold(mine)
    busy(theirs)
    assert not read_only(mine)
    before = theirs.value(BODY)
    for selector in (BODY, "[name=title]", "[name=section]"):
        theirs.type(selector, "Sport")
    theirs.click("[name=published]")
    assert (theirs.value(BODY), theirs.value("[name=section]")) == (before, "news")
    assert theirs.run("return document.querySelector('[name=published]').checked") is False
    assert theirs.run("return document.querySelectorAll('form :disabled').length") == 0
    assert theirs.run("return document.querySelector(arguments[0]).getAttribute('aria-readonly')", BODY) == "true"


def test_e13_a_save_gives_it_to_the_next_who_sees_the_new_version_first(
    ada: Person, bo: Person, path: str, saved: Callable[[], str]
) -> None:
    mine, theirs = meet(ada, bo, path, " By Ada.")
    save(mine)
    assert saved().endswith("By Ada.")
    banner(theirs, "has saved this meanwhile")
    assert read_only(theirs)
    theirs.follow(lambda: theirs.click("[data-distlock-action=reload]"))
    type_and_hold(theirs, " And Bo.")
    save(theirs)
    assert saved() == "On Saturday. By Ada. And Bo."


@pytest.mark.everywhere
def test_e12_leaving_frees_it_and_back_takes_it_again(ada: Person, bo: Person, path: str) -> None:
    mine, theirs = meet(ada, bo, path)
    mine.open(f"{ada.url}/articles/")
    wire.until_seen("ada", f"{path} release")
    mine.back()
    mine.until(lambda: mine.run("return !!document.querySelector(arguments[0])", BODY), "the form did not come back")
    held(mine)
    busy(theirs)
    assert not read_only(mine)
    mine.open(f"{ada.url}/articles/")
    banner(theirs, "You can edit this now")
    assert not read_only(theirs)


def test_e12_cancel_frees_it_at_once_and_forgets_what_was_typed(ada: Person, bo: Person, path: str) -> None:
    mine, theirs = meet(ada, bo, path)
    mine.follow(lambda: mine.click("[data-distlock-cancel]"))
    mine.until(lambda: not leases(), "it is reserved for Ada")
    banner(theirs, "You can edit this now")
    mine.open(ada.url + path)
    wire.until_seen("ada", f"{path} watch")
    assert not mine.text(KEPT)


@pytest.mark.everywhere
def test_e11_a_reload_keeps_the_lock_and_offers_the_text(ada: Person, bo: Person, path: str) -> None:
    """The release of the old page comes behind the first beat of the new one, and frees nothing."""
    mine, theirs = meet(ada, bo, path, " Unsaved.")
    before = mine.value(LEASE)
    with wire.held_back(lambda request: request.headers.get("Distlock-Edit") == "release"):
        mine.reload()
        held(mine)
        wire.seen.clear()
    wire.until_seen("ada", f"{path} release")
    assert mine.value(LEASE) != before
    assert leases()
    busy(theirs)
    assert "tab" not in mine.text(BANNER)
    assert not read_only(mine)
    banner(mine, "that was not saved", KEPT)
    assert mine.value(BODY) == "On Saturday."
    mine.click("[data-distlock-action=put_back]")
    assert mine.value(BODY) == "On Saturday. Unsaved."


@pytest.mark.everywhere
def test_e11_a_tab_that_crashed_and_was_restored(ada: Person, bo: Person, path: str) -> None:
    """No release came. It is the same tab: it adopts its own lease at once, and nobody is told "another tab"."""
    mine, theirs = meet(ada, bo, path)
    before = mine.value(LEASE)
    ada.profile.crash_and_restore(mine)
    held(mine)
    assert mine.value(LEASE) != before
    busy(theirs)
    assert not read_only(mine)
    assert "another tab" not in mine.text(BANNER)


@pytest.mark.everywhere
def test_e11_two_tabs_of_one_person_one_of_them_duplicated(ada: Person, path: str) -> None:
    first = ada.open(path)
    type_and_hold(first)
    second = ada.open("/articles/")
    copy_of(first, second, ada.url + path)
    assert (read_only(first), read_only(second)) == (False, True)
    second.click("[data-distlock-action=edit_here]")
    held(second)
    banner(first, "You continue in another tab")
    assert (read_only(first), read_only(second)) == (True, False)
    assert first.value(BODY) == "On Saturday. Typed."


@contextmanager
def asleep(ada: Person, mine: Tab) -> Iterator[None]:
    ada.profile.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        ada.profile.send_signal(signal.SIGCONT)


@contextmanager
def offline(ada: Person, mine: Tab) -> Iterator[None]:
    ada.profile.offline(mine, True)
    banner(mine, "No connection")
    assert not read_only(mine), "nothing is taken away from the page"
    yield
    mine.type(BODY, " Still offline.")
    ada.profile.offline(mine, False)


@pytest.mark.parametrize(("away", "more"), [(asleep, ""), (offline, " Still offline.")])
def test_e14_a_browser_that_was_away_beyond_the_ttl(
    ada: Person, bo: Person, path: str, saved: Callable[[], str], away: Any, more: str
) -> None:
    """Somebody came and saved: it says so, and the save keeps both."""
    mine, theirs = meet(ada, bo, path, " By Ada.")
    with away(ada, mine):
        banner(theirs, "You can edit this now")
        type_and_hold(theirs, " By Bo.")
        save(theirs)
    banner(mine, "meanwhile")
    assert mine.value(BODY) == f"On Saturday. By Ada.{more}"
    mine.run("document.querySelector('form').requestSubmit()")
    mine.until(lambda: "By Bo." in mine.text("body") and "By Ada." in page(mine), "a version is missing")
    assert saved() == "On Saturday. By Bo."


def test_e16_the_end_of_the_session(ada: Person, path: str, saved: Callable[[], str]) -> None:
    mine = ada.open(path)
    type_and_hold(mine, " Kept.")
    for session in Session.objects.all():
        if session.get_decoded().get("_auth_user_id") == str(user_of("ada").pk):
            session.delete()
    banner(mine, "You are logged out")
    assert read_only(mine)
    assert mine.value(BODY) == "On Saturday. Kept."
    ada.log_in(ada.home)
    mine.until(lambda: not read_only(mine), "it did not go on after the log-in")
    save(mine)
    assert saved() == "On Saturday. Kept."


def test_save_and_continue_in_the_admin(ada: Person, bo: Person, admin: str, saved: Callable[[], str]) -> None:
    """A key in an inline takes the lock of all of it; a row that Django's script adds is locked too."""
    mine, theirs = ada.open(admin), bo.open(admin)
    theirs.click(".add-row a")
    type_and_hold(mine, "The Times", "[name=sources-0-name]")
    busy(theirs)
    assert [read_only(theirs, f"[name=sources-{number}-name]") for number in (0, 1)] == [True, True]
    before = mine.value(LEASE)
    save(mine, "[name=_continue]")
    held(mine)
    assert mine.value(LEASE) != before
    assert list(Source.objects.values_list("name", flat=True)) == ["The Times"]
    busy(theirs)
    type_and_hold(mine, " Second.")
    save(mine)
    banner(theirs, "Ada has saved this meanwhile")
    assert saved() == "On Saturday. Second."


def test_e18_a_takeover_in_the_admin_and_an_object_that_is_deleted(
    ada: Person, bo: Person, article: Article, admin: str, saved: Callable[[], str]
) -> None:
    with bo.allowed("takeover_editlease"):
        mine, theirs = meet(ada, bo, admin, " By Ada.")
        take_over(theirs, "Deadline")
        theirs.type(BODY, " By Bo.")
        save(theirs)
        banner(mine, "Bo has taken over")
        assert saved() == "On Saturday. By Bo."
        assert "Deadline" in bo.open(f"{LIST}{article.pk}/history/").text("#change-history")
    mine.until(lambda: not upkeep.held("default", of_objects=True), "it stays reserved for Bo")
    mine.reload()
    banner(mine, "against an older version", KEPT)
    type_and_hold(mine, " Kept.")
    Article.objects.filter(pk=article.pk).delete()
    banner(mine, "deleted")
    save(mine)
    assert "deleted" in mine.text("[role=alert]")
    assert " Kept." in page(mine)
    assert not Article.objects.filter(pk=article.pk).exists()


# text that browsers fill in again, pages that are only fetched, a strict policy, an insecure context, what axe says


def submit(tab: Tab) -> None:
    """Send the form as it is, past every script and check of the browser."""
    tab.follow(lambda: tab.run("HTMLFormElement.prototype.submit.call(document.querySelector('form'))"))


@pytest.mark.everywhere
def test_e8_text_that_comes_back_destroys_nothing(
    ada: Person, path: str, saved: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    """After "back" and after a reload, with scripts and without; a plain form loses what others have saved."""
    mine = ada.open(path)
    type_and_hold(mine, " Old text.")
    mine.open(f"{ada.url}/articles/")
    Article.objects.update(body="By a shell.")
    mine.back()
    mine.until(lambda: mine.value(BODY), "the form has not come back")
    submit(mine)
    assert saved() == "By a shell."
    firefox = request.node.callspec.params["people"] == "firefox"
    for policy, address, destroyed in (("", path, False), (NO_SCRIPTS, path, False), ("", f"{path}plain/", firefox)):
        if policy:
            wire.headers["Content-Security-Policy"] = policy
        Article.objects.update(body="On Saturday.")
        mine = ada.open(address)
        mine.type(BODY, " Old text.")
        Article.objects.update(body="By a shell.")
        mine.reload()
        submit(mine)
        assert saved() == ("On Saturday. Old text." if destroyed else "By a shell.")
        wire.headers.clear()


def test_e17_a_page_that_is_only_fetched_is_no_visit(ada: Person, bo: Person, path: str, settings: Any) -> None:
    """Prefetched by Chromium, or prerendered, so that its script runs."""
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open"}
    rules = f'{{"prerender": [{{"urls": ["{path}"], "eagerness": "immediate"}}]}}'
    for head in (f'<link rel="prefetch" href="{path}">', f'<script type="speculationrules">{rules}</script>'):
        wire.head = head
        wire.seen.clear()
        ada.open("/articles/")
        wire.until_seen("ada", path)
        time.sleep(TIMES["BEAT"])
        assert not leases()
    wire.head = ""
    held(bo.open(path))


def test_the_pages_need_nothing_but_the_site_itself(ada: Person, bo: Person, article: Article, path: str) -> None:
    wire.headers["Content-Security-Policy"] = f"default-src 'self'; report-uri {REPORTS}"
    ada.open("/articles/")
    other = Article.objects.create(title="Another one", body="-")
    with bo.allowed("takeover_editlease"):
        for address in (path, f"{LIST}{other.pk}/change/"):
            mine, theirs = meet(ada, bo, address, " Strict.")
            take_over(theirs)
            banner(mine, "Bo has taken over")
            assert read_only(mine)
            save(mine)
            assert "Bo is editing this now." in mine.text(".errorlist")
        bo.open(LIST)
        bo.open(f"{LIST}{article.pk}/delete/")
    assert wire.reports == []
    wire.head = "<script>window.inline = true</script>"
    tab = ada.open("/articles/")
    tab.until(lambda: wire.reports, "the policy of this test reports nothing")


def test_e20_an_insecure_context(ada: Person, bo: Person, path: str, settings: Any, saved: Callable[[], str]) -> None:
    """http on a LAN: no Web Locks, no crypto.randomUUID."""
    settings.ALLOWED_HOSTS = ["*"]
    url = f"http://{OTHER_NAME}:{urlsplit(ada.url).port}"
    mine = ada.open("/articles/")
    ada.log_in(mine, url)
    mine.open(url + path)
    assert mine.run("return !navigator.locks && !crypto.randomUUID")
    type_and_hold(mine, " On a LAN.")
    busy(bo.open(path))
    mine.reload()
    held(mine)
    assert not read_only(mine)
    mine.type(BODY, " Done.")
    save(mine)
    assert saved() == "On Saturday. Done."


LOOKS = """
const [done] = arguments;
import("/static/django_distlock/editing.js").then(({ FormView }) => {
  const root = document.querySelector("[data-distlock-edit]");
  const view = new FormView(root, JSON.parse(document.getElementById(root.dataset.texts).textContent), sessionStorage);
  const looks = ["busy", "changed", "lost", "free", "warning", "given", "error", "kept"];
  view.form.prepend(...looks.map((look) => {
    const box = document.createElement("div");
    box.setAttribute("role", "status");
    view.fill(box, look, `A banner of the look ${look}`, ["take_over", "reload"]);
    return box;
  }));
  done(looks.length);
});
"""


def faults(tab: Tab) -> list[str]:
    """What axe finds in light and dark colours."""
    found = []
    for dark in (True, False):
        tab.run("return 0")  # in front
        tab.profile.dark(dark)
        found += [f"{'dark' if dark else 'light'}: {fault}" for fault in axe.faults(tab.profile)]
    return found


def test_e19_axe_finds_nothing_in_any_state(ada: Person, bo: Person, path: str) -> None:
    with bo.allowed("takeover_editlease"):
        mine, theirs = meet(ada, bo, path)
        assert faults(mine) == []
        theirs.click("[data-distlock-action=take_over]")
        assert faults(theirs) == []
        theirs.click("[data-distlock-action=confirm]")
        held(theirs)
        banner(mine, "Bo has taken over")
        save(mine)
        assert "Bo is editing this now." in mine.text(".errorlist")
        assert faults(mine) == []
        mine.open(ada.url + path)
        banner(mine, "that was not saved", KEPT)
        mine.run("return 0")  # in front
        assert mine.profile.execute_async_script(LOOKS) == 8
        assert faults(mine) == []
