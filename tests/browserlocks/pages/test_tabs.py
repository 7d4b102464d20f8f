"""Locks between the tabs of one browser: Web Locks, and records in localStorage where there are none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.ledger import ledger
from tests.support.wire import wire

if TYPE_CHECKING:
    from .conftest import Person

pytestmark = pytest.mark.tier2
TAB = {"scope": "browser"}


@pytest.fixture(params=["browser", "best-effort"])
def guarantee(request: pytest.FixtureRequest) -> str:
    """With Web Locks, and as in a browser or a context without them."""
    if request.param == "best-effort":
        wire.head = '<script>Object.defineProperty(navigator, "locks", { value: undefined })</script>'
    return str(request.param)


def test_tabs_take_turns_and_the_lock_says_how_strong_it_is(ada: Person, bo: Person, guarantee: str) -> None:
    one, two = ada.room().hold("one", **TAB), ada.room()
    said = one.run(
        "const {fence, guarantee, name, headers} = sections.one.lock; return [fence, guarantee, name, headers]"
    )
    assert said == [None, guarantee, "cart", {}]
    # a tab that was duplicated has the same sessionStorage
    stored = one.run("return Object.entries(sessionStorage)")
    two.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    two.take("two", **TAB)
    two.take("try", ifAvailable=True, **TAB)
    two.until_state("try", "null")
    two.take("late", timeout=200, **TAB)
    two.until_end("late", "LockTimeoutError: timeout")
    assert two.state("two") == "waiting"
    ada.room(name="shelf").hold("another name", **TAB)
    bo.room().hold("another browser", **TAB)
    one.finish("one")
    two.until_state("two", "held")


@pytest.mark.everywhere
def test_a_tab_that_goes_gives_it_back(ada: Person, guarantee: str) -> None:
    """WebKit may lose what a page writes when it is closed; then the record ends after ten seconds."""
    one, two = ada.room().hold("one", **TAB), ada.room()
    two.take("two", **TAB)
    one.close()
    two.until_state("two", "held")


@pytest.mark.everywhere
def test_a_tab_that_comes_back_knows_that_it_has_lost(ada: Person, guarantee: str) -> None:
    one = ada.room().hold("one", **TAB)
    one.take("waiting", **TAB)
    one.leave()
    two = ada.room().hold("two", **TAB)
    if one.back_again():
        one.until_end("one", "LockLostError: page")
        assert one.state("waiting") == "waiting"
        two.finish("two")
        one.until_state("waiting", "held")


def test_what_was_taken_away_is_lost(ada: Person, guarantee: str) -> None:
    one, two = ada.room().hold("one", **TAB), ada.room()
    if guarantee == "browser":
        two.run("navigator.locks.request('distlock:cart', {steal: true}, () => new Promise(() => {}))")
    else:
        two.run("localStorage.setItem('distlock:cart', 'another')")
    one.until_state("one", "lost: stolen" if guarantee == "browser" else "lost: taken")


@pytest.mark.parametrize("guarantee", ["best-effort"], indirect=True)
def test_a_crashed_tab_does_not_block_for_ever(ada: Person, guarantee: str) -> None:
    """No storage event and no pagehide: its record stays as it is."""
    one = ada.room()
    one.run("localStorage.setItem('distlock:cart', JSON.stringify({id: 'gone', beat: 'gone', ttl: 2_000}))")
    began = time.monotonic()
    one.hold("one", **TAB)
    assert time.monotonic() - began >= 2


@pytest.mark.parametrize("guarantee", ["browser"], indirect=True)
def test_tabs_race(ada: Person, guarantee: str) -> None:
    """By records two tabs that ask at the same moment can both get it, which is in the docs."""
    rooms = [ada.room(f"who={who}") for who in "abc"]
    for room in rooms:
        room.run("window.over = false; race(15, {scope: 'browser'}).then(() => (window.over = true))")
    for room in rooms:
        room.until(lambda r=room: r.run("return window.over"), "the sections do not end", 60)
    assert len(ledger.entered) == 45
    ledger.check()


def test_a_policy_that_allows_the_site_only(ada: Person) -> None:
    wire.headers["Content-Security-Policy"] = "default-src 'self'; report-uri /policy-reports/"
    tab = ada.room("hidden")
    for scope in ("server", "browser"):
        tab.hold(scope, scope=scope)
    ada.home.run("return 0")  # the tab is hidden: timers go on in a worker
    time.sleep(1)
    assert wire.reports == []
