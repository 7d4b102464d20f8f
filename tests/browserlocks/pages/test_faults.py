"""Networks that end, answers that get lost, clocks that jump, tabs that stand still, servers that die."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.ledger import ledger
from tests.browserlocks.people import LEASES, holder_of
from tests.browserlocks.served import Site
from tests.support.timing import within
from tests.support.wire import wire

from .conftest import TTL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest

    from .conftest import Person

pytestmark = pytest.mark.tier2


def is_acquire(request: HttpRequest) -> bool:
    return request.method == "POST" and request.path == LEASES


def test_a_network_that_ends(ada: Person, bo: Person) -> None:
    """The holder knows that it has lost the lock, and can ask again when the network is back."""
    mine, theirs = ada.room().hold("mine"), bo.room()
    ada.profile.offline(mine, True)
    try:
        theirs.take("theirs")
        mine.until_state("mine", "lost: expired")
        theirs.until_state("theirs", "held")
        mine.take("again")
        assert mine.state("again") == "waiting"
    finally:
        ada.profile.offline(mine, False)
    theirs.finish("theirs")
    mine.until_state("again", "held")


def test_a_holder_is_told_before_another_has_the_lock(ada: Person, bo: Person) -> None:
    """By one clock: both browsers are on this machine. A page that the machine makes late says so late: what it has
    promised counts, and that it does not say so much later. And a protected view refuses what comes too late."""
    mine, theirs = ada.room().hold("mine"), bo.room()
    send = (
        "const [done] = arguments; fetch('/guarded/', {method: 'POST', headers: sections.mine.lock.headers})"
        ".then((reply) => done(reply.status))"
    )
    assert mine.ask(send) == 200
    with wire.lost(lambda request: request.path.endswith("/renew/")):
        believed = mine.run("return Date.now() + sections.mine.lock.expiresIn")
        theirs.hold("theirs")
        mine.until_end("mine", "LockLostError: expired")
    told = mine.about("mine")["lostAt"]  # some time before the end, and then it gives the lock back
    assert min(told, believed) < theirs.about("theirs")["heldAt"] + 1  # the clock's resolution
    within((told - believed) / 1000, 0.3, what="the news after the end")
    assert mine.ask(send) == 423


def test_an_answer_that_is_lost_is_asked_for_again(ada: Person) -> None:
    """The lease was granted; the same id asks again and has it, with the same fence."""
    mine = ada.room()
    with wire.answers_lost(is_acquire):
        mine.take("mine")
        mine.until(holder_of, "the request did not arrive")
        assert mine.state("mine") == "waiting"
    mine.until_state("mine", "held")
    assert mine.run("return sections.mine.lock.id") == holder_of()


def test_a_release_that_is_lost_is_sent_again(ada: Person, bo: Person) -> None:
    mine, theirs = ada.room("ttl=60").hold("mine"), bo.room().wait("theirs")
    with wire.lost(lambda request: request.path.endswith("/release/")):
        mine.finish("mine")
        mine.until_end("mine", "ended")
        assert holder_of()
    theirs.until_state("theirs", "held")


def test_who_gives_up_while_the_request_is_under_way_holds_nothing(ada: Person) -> None:
    mine = ada.room("ttl=60")
    with wire.held_back(is_acquire):
        mine.take("mine", timeout=300)
        mine.until_end("mine", "LockTimeoutError: timeout")
    wire.until_seen("ada", LEASES)  # it was granted
    mine.until(lambda: not holder_of(), "nothing was given back")


def test_a_clock_that_jumps_changes_nothing(ada: Person, bo: Person) -> None:
    mine = ada.room().hold("mine")
    bo.room().take("theirs")
    for hours, wait in ((+5, TTL / 2), (-9, TTL * 1.5)):
        mine.run("const now = Date.now; Date.now = () => now() + arguments[0] * 3_600_000", hours)
        time.sleep(wait)
        assert mine.state("mine") == "held"
    assert [who for who, _ in ledger.entered] == ["mine"]


def test_a_clock_that_stood_still_is_believed_only_after_a_renewal(ada: Person) -> None:
    """A computer slept, and performance.now() with it; only the time of day has gone on. The lease may have ended."""
    mine = ada.room("ttl=60").hold("mine")
    with wire.lost(lambda request: request.path.startswith("/distlock/")):
        mine.run("const now = Date.now; Date.now = () => now() + 3_600_000")
        assert mine.run("return sections.mine.lock.expiresIn") == 0
        mine.until_state("mine", "lost: expired")


def test_a_log_out_in_another_tab(ada: Person, bo: Person) -> None:
    """And a log-in, which changes the token."""
    mine, waiting, theirs = ada.room().hold("mine"), ada.room().wait("waiting"), bo.room()
    theirs.take("theirs")
    ada.home.open(f"{ada.url}/out/")
    mine.until_state("mine", "lost: logged_out")
    waiting.until_end("waiting", "LockError: logged_out")
    assert "Log in" in waiting.about("waiting")["message"]
    theirs.until_state("theirs", "held")
    theirs.finish("theirs")
    ada.log_in()
    mine.hold("again")


@pytest.mark.everywhere
def test_a_hidden_tab_keeps_its_lock(ada: Person, bo: Person) -> None:
    """Browsers slow its timers down."""
    hidden, theirs = ada.room("hidden").hold("hidden"), bo.room()
    ada.home.run("return 0")  # in front
    theirs.take("theirs")
    time.sleep(TTL * 1.5)
    assert [who for who, _ in ledger.entered] == ["hidden"]
    hidden.finish("hidden")
    theirs.until_state("theirs", "held")


@pytest.mark.everywhere
def test_a_browser_that_slept_has_lost_its_lock(ada: Person, bo: Person) -> None:
    mine, theirs = ada.room().hold("mine"), bo.room()
    ada.profile.send_signal(signal.SIGSTOP)
    try:
        theirs.hold("theirs")
    finally:
        ada.profile.send_signal(signal.SIGCONT)
    mine.until_end("mine", "LockLostError: expired")
    assert theirs.state("theirs") == "held"


# on ASGI


@pytest.fixture
def asgi(here: list[Person], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Site(TTL=TTL) as site:
        for person in here:
            monkeypatch.setattr(person, "url", f"http://127.0.0.1:{site.port}")
            person.log_in()
        yield site
        for person in here:
            person.close_tabs()


def test_the_tabs_of_a_browser_share_one_stream_and_hidden_ones_get_their_turn_at_once(
    asgi: Site, ada: Person, bo: Person
) -> None:
    """Without the stream a hidden tab asks every five seconds, or once a minute. When the tab that leads is closed,
    another one has the stream."""
    theirs = bo.room().hold("theirs")
    lead, *tabs = (ada.room("hidden").wait(f"w{number}") for number in range(3))
    for close in (lead.close, lambda: None):  # Ada's stream, and that of the holder
        time.sleep(1)  # one that is opened anew is there beside the one before it, for a moment
        theirs.until(lambda: asgi.open()["streams"] == 2, lambda: f"{asgi.open()} streams")
        close()
    theirs.finish("theirs")
    for number, tab in enumerate(tabs, 1):
        freed = time.monotonic()
        tab.until_state(f"w{number}", "held")
        within(time.monotonic() - freed, 4)
        tab.finish(f"w{number}")
    theirs.until(lambda: asgi.open()["streams"] == 0, "the stream stays open", 30)


def test_a_server_that_is_killed_and_comes_back(asgi: Site, ada: Person, bo: Person) -> None:
    """The leases are in the database: the holder goes on, and the waiter waits on."""
    mine, theirs = ada.room("ttl=20").hold("mine"), bo.room().wait("theirs")
    lease = holder_of()
    asgi.__exit__()
    time.sleep(1)
    asgi.__enter__()
    time.sleep(TTL)
    assert (mine.state("mine"), theirs.state("theirs"), holder_of()) == ("held", "waiting", lease)
    mine.finish("mine")
    theirs.until_state("theirs", "held")
