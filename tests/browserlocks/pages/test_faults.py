"""Networks that end, answers that get lost, clocks that jump, tabs that stand still, and people who log out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.http.people import holder_of
from tests.support.timing import within
from tests.support.wire import wire

from .conftest import TTL
from .ledger import ledger

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers


def is_acquire(request: HttpRequest) -> bool:
    return request.method == "POST" and request.path.endswith("/leases/")


def is_release(request: HttpRequest) -> bool:
    return request.path.endswith("/release/")


def is_of_locks(request: HttpRequest) -> bool:
    return request.path.startswith("/distlock/")


def test_a_network_that_ends(ada: Person, bo: Person) -> None:
    """The holder knows that it has lost the lock before another has it, and can ask again when the network is back."""
    mine, theirs = ada.room(), bo.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    ada.profile.offline(mine, True)
    cut = time.monotonic()
    try:
        theirs.take("theirs")
        mine.until_state("mine", "lost: expired")
        within(time.monotonic() - cut, TTL + 1)
        theirs.until_state("theirs", "held", TTL + 3)
        mine.take("again")
        time.sleep(1)
        assert mine.state("again") == "waiting"
    finally:
        ada.profile.offline(mine, False)
    theirs.finish("theirs")
    mine.until_state("again", "held")


@pytest.mark.alike
def test_a_holder_is_told_before_another_has_the_lock(ada: Person, bo: Person) -> None:
    """By one clock: both browsers are on this machine. A page that the machine makes late says so late: what it has
    promised counts, and that it does not say so much later."""
    mine = ada.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    with wire.lost(lambda request: request.path.endswith("/renew/")):
        believed = mine.run("return Date.now() + sections.mine.lock.expiresIn")
        theirs = bo.room()
        theirs.take("theirs")
        theirs.until_state("theirs", "held", TTL + 3)
        mine.until_end("mine", "LockLostError: expired")
    when = "return sections[arguments[0]][arguments[1]]"
    assert believed < theirs.run(when, "theirs", "heldAt") + 1  # the clock's resolution
    within((mine.run(when, "mine", "lostAt") - believed) / 1000, 0.3, what="the news after the end")


@pytest.mark.alike
def test_a_protected_view_refuses_what_comes_too_late(ada: Person, bo: Person) -> None:
    mine, theirs = ada.room(), bo.room()
    send = (
        "const [done] = arguments; fetch('/guarded/', {method: 'POST', headers: sections.mine.lock.headers})"
        ".then((reply) => done(reply.status))"
    )
    mine.take("mine")
    mine.until_state("mine", "held")
    assert mine.ask(send) == 200
    with wire.lost(lambda request: request.path.endswith("/renew/")):
        theirs.take("theirs")
        theirs.until_state("theirs", "held", TTL + 3)
    assert mine.ask(send) == 423


@pytest.mark.alike
def test_an_answer_that_is_lost_is_asked_for_again(ada: Person) -> None:
    """The lease was granted; the same id asks again and has it, with the same fence."""
    mine = ada.room()
    with wire.answers_lost(is_acquire):
        mine.take("mine")
        mine.until(lambda: holder_of("cart"), "the request did not arrive")
        assert mine.state("mine") == "waiting"
    mine.until_state("mine", "held")
    assert mine.run("return sections.mine.lock.id") == holder_of("cart")


@pytest.mark.alike
def test_a_release_that_is_lost_is_sent_again(ada: Person, bo: Person) -> None:
    mine, theirs = ada.room(query="ttl=30"), bo.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    theirs.take("theirs")
    theirs.until_waiting("theirs")
    with wire.lost(is_release):
        mine.finish("mine")
        mine.until_end("mine", "ended")
        assert holder_of("cart")
    theirs.until_state("theirs", "held", 10)


@pytest.mark.alike
def test_who_gives_up_while_the_request_is_under_way_holds_nothing(ada: Person) -> None:
    mine = ada.room(query="ttl=30")
    with wire.held_back(is_acquire):
        mine.take("mine", timeout=300)
        mine.until_end("mine", "LockTimeoutError: timeout")
    wire.until_seen("ada", "/distlock/leases/")  # it was granted
    mine.until(lambda: not holder_of("cart"), "nothing was given back")


def test_a_clock_that_jumps_changes_nothing(ada: Person, bo: Person) -> None:
    mine, theirs = ada.room(), bo.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    theirs.take("theirs")
    for hours in (+5, -9):
        mine.run("const now = Date.now; Date.now = () => now() + arguments[0] * 3_600_000", hours)
        time.sleep(TTL / 2)
        assert mine.state("mine") == "held"
    time.sleep(TTL)
    assert mine.state("mine") == "held"
    assert ledger.order == ["mine"]


@pytest.mark.alike
def test_a_clock_that_stood_still_is_believed_only_after_a_renewal(ada: Person) -> None:
    """A computer slept, and performance.now() with it; only the time of day has gone on. The lease may have ended."""
    mine = ada.room(query="ttl=60")
    mine.take("mine")
    mine.until_state("mine", "held")
    with wire.lost(is_of_locks):
        mine.run("const now = Date.now; Date.now = () => now() + 3_600_000")
        assert mine.run("return sections.mine.lock.expiresIn") == 0
        mine.until_state("mine", "lost: expired", 5)


@pytest.mark.alike
def test_a_log_out_in_another_tab(ada: Person, bo: Person) -> None:
    mine, waiting, theirs = ada.room(), ada.room(), bo.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    waiting.take("waiting")
    waiting.until_waiting("waiting")
    theirs.take("theirs")
    ada.home.open(f"{ada.url}/out/")
    mine.until_state("mine", "lost: logged_out")
    waiting.until_end("waiting", "LockError: logged_out")
    assert "Log in" in waiting.about("waiting")["message"]
    theirs.until_state("theirs", "held")


@pytest.mark.alike
def test_a_log_in_in_another_tab_changes_the_token(ada: Person) -> None:
    mine = ada.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    ada.home.open(f"{ada.url}/out/")
    ada.log_in()
    mine.take("again")
    if mine.state("mine") == "held":
        mine.finish("mine")
    mine.until_state("again", "held")


@pytest.mark.alike
def test_refusals_name_the_cure(ada: Person) -> None:
    tab = ada.room()
    ask = (
        "const [grant, endpoint, options, done] = arguments;"
        "import('/static/django_distlock/distlock.js').then(({LockManager}) =>"
        "  new LockManager({endpoint}).request(grant, options, () => {}))"
        ".catch((error) => done([error.name, error.reason, error.message]))"
    )
    grant = tab.run("return grant")
    assert tab.ask(ask, "forged", "/distlock/", {})[:2] == ["LockError", "grant"]
    assert tab.ask(ask, grant, "/elsewhere/", {})[:2] == ["LockError", "endpoint"]
    assert "endpoint" in tab.ask(ask, grant, "", {})[2]
    assert "option steal" in tab.ask(ask, grant, "/distlock/", {"steal": True})[2]
    assert "scope planet" in tab.ask(ask, grant, "/distlock/", {"scope": "planet"})[2]
    with wire.lost(is_of_locks):
        assert tab.ask(ask, grant, "/distlock/", {"ifAvailable": True})[:2] == ["LockError", "unreachable"]


def test_a_hidden_tab_keeps_its_lock_and_gets_its_turn(ada: Person, bo: Person) -> None:
    hidden, theirs = ada.room(query="hidden"), bo.room()
    hidden.take("hidden")
    hidden.until_state("hidden", "held")
    ada.home.run("return 0")  # in front
    theirs.take("theirs")
    time.sleep(TTL * 2)
    assert ledger.order == ["hidden"]
    hidden.finish("hidden")
    theirs.until_state("theirs", "held")
    hidden.take("hidden again")
    hidden.until_waiting("hidden again")
    ada.home.run("return 0")
    theirs.finish("theirs")
    began = time.monotonic()
    ada.home.until(lambda: ledger.order[-1] == "hidden again", "the hidden tab has not got it")
    within(time.monotonic() - began, 10)


def test_a_frozen_tab_loses_its_lock_and_knows_it(ada: Person, bo: Person, name: str) -> None:
    if name != "chromium":
        pytest.skip("Only Chromium can be told to freeze a tab; SIGSTOP of the others is in test_leases.py.")
    frozen, theirs = ada.room(), bo.room()
    frozen.take("frozen")
    frozen.until_state("frozen", "held")
    driver = frozen.profile.driver  # type: ignore[attr-defined]
    ada.home.run("return 0")
    driver.switch_to.window(frozen.handle)
    driver.execute_cdp_cmd("Page.setWebLifecycleState", {"state": "frozen"})
    theirs.take("theirs")
    theirs.until_state("theirs", "held", TTL + 5)
    driver.execute_cdp_cmd("Page.setWebLifecycleState", {"state": "active"})
    frozen.until_end("frozen", "LockLostError: expired")
    assert theirs.state("theirs") == "held"
