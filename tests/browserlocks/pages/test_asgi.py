"""On ASGI: one stream of events per browser, turns that come at once, and a server that is killed and comes back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.http.people import holder_of
from tests.support.processes import Child
from tests.support.timing import within

from .asgi import serve
from .conftest import TTL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers


class Site:
    """The server, also after a restart at the same port."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, port: int) -> None:
        self.child = Child(serve, port, TTL)
        self.child.__enter__()
        self.port: int = self.child.hear()

    def stop(self) -> None:
        self.child.kill()
        self.child.__exit__(None, None, None)

    def streams(self) -> int:
        self.child.say("what is open?")
        return int(self.child.hear()["watches"])


@pytest.fixture
def site(ada: Person, bo: Person) -> Iterator[Site]:
    made = Site()
    before = ada.url, bo.url
    try:
        for person in (ada, bo):
            person.url = f"http://127.0.0.1:{made.port}"
            person.log_in()
        yield made
    finally:
        ada.url, bo.url = before
        ada.close_tabs()
        bo.close_tabs()
        made.stop()


def test_the_tabs_of_a_browser_share_one_stream_and_hidden_ones_get_their_turn_at_once(
    site: Site, ada: Person, bo: Person
) -> None:
    """Without the stream a hidden tab asks every five seconds, or once a minute."""
    theirs = bo.room()
    theirs.take("theirs")
    theirs.until_state("theirs", "held")
    tabs = [ada.room(query="hidden") for _ in range(3)]
    for number, tab in enumerate(tabs):
        tab.take(f"w{number}")
        tab.until_waiting(f"w{number}")
    theirs.until(lambda: site.streams() == 2, lambda: f"{site.streams()} streams")  # Ada's, and that of the holder
    time.sleep(2)
    # one that is opened anew is there beside the one before it, for a moment
    theirs.until(lambda: site.streams() == 2, lambda: f"{site.streams()} streams")
    theirs.finish("theirs")
    for number, tab in enumerate(tabs):
        freed = time.monotonic()
        tab.until_state(f"w{number}", "held")
        within(time.monotonic() - freed, 4)
        tab.finish(f"w{number}")
    theirs.until(lambda: site.streams() == 0, "the stream stays open", 30)


def test_another_tab_has_the_stream_when_the_first_is_closed(site: Site, ada: Person, bo: Person) -> None:
    theirs = bo.room()
    theirs.take("theirs")
    theirs.until_state("theirs", "held")
    first, second = ada.room(query="hidden"), ada.room(query="hidden")
    first.take("first")
    first.until_waiting("first")
    theirs.until(lambda: site.streams() == 2, "there is no stream")
    second.take("second")
    second.until_waiting("second")
    first.close()
    second.until_waiting("second")
    time.sleep(2)
    # one that is opened anew is there beside the one before it, for a moment
    theirs.until(lambda: site.streams() == 2, lambda: f"{site.streams()} streams")
    theirs.finish("theirs")
    freed = time.monotonic()
    second.until_state("second", "held")
    within(time.monotonic() - freed, 4)


@pytest.mark.alike
def test_a_server_that_is_killed_and_comes_back(site: Site, ada: Person, bo: Person) -> None:
    """The leases are in the database: the holder goes on, and the waiter waits on."""
    mine, theirs = ada.room(query="ttl=20"), bo.room()
    mine.take("mine")
    mine.until_state("mine", "held")
    theirs.take("theirs")
    theirs.until_waiting("theirs")
    lease = holder_of("cart")
    site.stop()
    time.sleep(3)
    site.start(site.port)
    time.sleep(8)
    assert mine.state("mine") == "held"
    assert holder_of("cart") == lease
    assert theirs.state("theirs") == "waiting"
    mine.finish("mine")
    theirs.until_state("theirs", "held")
