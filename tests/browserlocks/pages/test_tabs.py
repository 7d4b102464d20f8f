"""Locks between the tabs of one browser: Web Locks, and records in localStorage where there are none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.sizes import LONG
from tests.support.timing import within
from tests.support.wire import wire

from .ledger import ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Person, Room

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers
TAB = {"scope": "browser"}


@pytest.fixture(params=["web-locks", "records"])
def guarantee(request: pytest.FixtureRequest, crew: None) -> str:
    """With Web Locks, and as in a browser or a context without them."""
    if request.param == "records":
        wire.head = '<script>Object.defineProperty(navigator, "locks", { value: undefined })</script>'
        return "best-effort"
    return "browser"


def strength(tab: Room, who: str) -> str:
    return str(tab.run("return sections[arguments[0]].lock.guarantee", who))


def test_tabs_take_turns_and_the_lock_says_how_strong_it_is(ada: Person, guarantee: str) -> None:
    one, two = ada.room(), ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    assert strength(one, "one") == guarantee
    assert one.run(
        "const {fence, expiresIn, name, headers} = sections.one.lock; return [fence ?? null, name, headers]"
    ) == [
        None,
        "cart",
        {},
    ]
    two.take("two", **TAB)
    two.take("try", scope="browser", ifAvailable=True)
    two.until_state("try", "null")
    two.take("late", scope="browser", timeout=200)
    two.until_end("late", "LockTimeoutError: timeout")
    assert two.state("two") == "waiting"
    one.finish("one")
    two.until_state("two", "held")
    ledger.check()


@pytest.mark.parametrize("leave", ["close", "navigate"])
def test_a_tab_that_goes_gives_it_back(ada: Person, guarantee: str, leave: str, name: str) -> None:
    one, two = ada.room(), ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    two.take("two", **TAB)
    if leave == "close":
        one.close()
    else:
        one.open(f"{ada.url}/elsewhere/")
    gone = time.monotonic()
    two.until_state("two", "held")
    # WebKit may lose what a page writes when it is closed; then the record ends after ten seconds
    lost = (name, guarantee, leave) == ("webkit", "best-effort", "close")
    within(time.monotonic() - gone, 12 if lost else 5)


def test_a_tab_that_comes_back_knows_that_it_has_lost(ada: Person, guarantee: str) -> None:
    one = ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    one.take("waiting", **TAB)
    one.run("document.querySelector('a').click()")
    one.until(lambda: one.text("p") == "Elsewhere", "it has not gone")
    two = ada.room()
    two.take("two", **TAB)
    two.until_state("two", "held")
    one.back()
    one.ready()
    if one.run("return window.persisted"):
        one.until_end("one", "LockLostError: page")
        assert one.state("waiting") == "waiting"
        two.finish("two")
        one.until_state("waiting", "held")


def test_a_duplicated_tab_is_another_tab(ada: Person, guarantee: str) -> None:
    one = ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    stored = one.run("return Object.entries(sessionStorage)")
    two = ada.room()
    two.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    two.take("two", **TAB)
    time.sleep(1)
    assert two.state("two") == "waiting"


@pytest.mark.alike
def test_another_name_and_another_browser_are_another_lock(ada: Person, bo: Person, guarantee: str) -> None:
    rooms = [ada.room("cart"), ada.room("shelf"), bo.room("cart")]
    for number, tab in enumerate(rooms):
        tab.take(str(number), **TAB)
        tab.until_state(str(number), "held")


@pytest.mark.alike
def test_a_record_that_was_taken_away_is_lost(ada: Person, guarantee: str) -> None:
    if guarantee == "browser":
        pytest.skip("There is no record: see the next test.")
    one, two = ada.room(), ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    two.run("localStorage.setItem('distlock:cart', 'another')")
    one.until_state("one", "lost: taken")


@pytest.mark.alike
def test_a_web_lock_that_was_stolen_is_lost(ada: Person) -> None:
    one, two = ada.room(), ada.room()
    one.take("one", **TAB)
    one.until_state("one", "held")
    two.run("navigator.locks.request('distlock:cart', {steal: true}, () => new Promise(() => {}))")
    one.until_state("one", "lost: stolen")


@pytest.mark.alike
def test_a_crashed_tab_blocks_for_ten_seconds_at_most(ada: Person, name: str) -> None:
    """No storage event and no pagehide: its record stays as it is."""
    wire.head = '<script>Object.defineProperty(navigator, "locks", { value: undefined })</script>'
    one = ada.room()
    one.run("localStorage.setItem('distlock:cart', JSON.stringify({id: 'gone', beat: 'gone', ttl: 2_000}))")
    began = time.monotonic()
    one.take("one", **TAB)
    one.until_state("one", "held")
    within(time.monotonic() - began, 6, least=2)


@pytest.mark.alike
def test_tabs_race(ada: Person, guarantee: str) -> None:
    # records settle longer here: with the default, a tab that a busy machine makes 25 ms late overlaps
    rounds, settle = (5, "&settle=250") if guarantee == "best-effort" else (15, "")
    rooms = [ada.room(query=f"who={who}{settle}") for who in "abc"]
    for room in rooms:
        room.run("window.over = false; race(arguments[0], {scope: 'browser'}).then(() => (window.over = true))", rounds)
    for room in rooms:
        room.until(lambda r=room: r.run("return window.over"), "the sections do not end", 60)
    assert len(ledger.entered) == 3 * rounds
    if guarantee == "best-effort":  # two tabs that ask at the same moment can both get it, see docs/browser/limits.md
        assert len(ledger.overlaps) <= 2
    else:
        ledger.check()


SETTLES = (0, 5, 10, 25)  # milliseconds
ROUNDS = 60


@pytest.mark.skipif(not LONG, reason="LONG=1: a measurement for docs/browser")
@pytest.mark.parametrize("settle", SETTLES)
def test_what_the_settle_delay_of_records_loses(
    ada: Person, name: str, settle: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Three tabs; how many sections begin while another goes on."""
    wire.head = '<script>Object.defineProperty(navigator, "locks", { value: undefined })</script>'
    rooms = [ada.room(query=f"who={who}&settle={settle}") for who in "abc"]
    for room in rooms:
        room.run(
            "window.over = false; race(arguments[0], {scope: 'browser'}).then(() => (window.over = true))",
            ROUNDS,
        )
    for room in rooms:
        room.until(lambda r=room: r.run("return window.over"), "the sections do not end", 100)  # type: ignore[misc]
    record_testsuite_property(f"settle-{name}-{settle}", f"{len(ledger.overlaps)} of {len(ledger.entered)}")
    print(f"{name}: {settle} ms: {len(ledger.overlaps)} of {len(ledger.entered)}")
    if settle == SETTLES[-1]:
        assert len(ledger.overlaps) <= len(ledger.entered) / 100


@pytest.mark.alike
def test_a_policy_that_allows_the_site_only(ada: Person) -> None:
    wire.headers["Content-Security-Policy"] = "default-src 'self'; report-uri /policy-reports/"
    tab = ada.room(query="hidden")
    for scope in ("server", "browser"):
        tab.take(scope, scope=scope)
        tab.until_state(scope, "held")
    ada.home.run("return 0")  # the tab is hidden: timers go on in a worker
    time.sleep(1)
    assert wire.reports == []
