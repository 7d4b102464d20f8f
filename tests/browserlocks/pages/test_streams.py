"""Which stream of events a tab keeps, and that it has one again: in a real page, with streams that the test opens.

The server of these tests speaks WSGI and sends no events; test_asgi.py has real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Person, Room

# Streams that do nothing by themselves, and Web Locks that come back half a second late.
FAKES = """
Object.defineProperty(document, "visibilityState", { value: "hidden" });
window.streams = [];
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 0;
  constructor(url) {
    super();
    this.url = url;
    streams.push(this);
  }
  close() {
    this.readyState = 2;
  }
};
const request = navigator.locks.request.bind(navigator.locks);
navigator.locks.request = (...asked) => request(...asked).finally(() => new Promise((after) => setTimeout(after, 500)));
"""


@pytest.fixture
def mine(ada: Person, bo: Person) -> Room:
    """Ada's hidden tab, whose own questions are seconds apart; Bo has the lock."""
    theirs = bo.room()
    theirs.take("theirs")
    theirs.until_state("theirs", "held")
    room = ada.room(query="hidden")
    room.run(FAKES)
    return room


def states(room: Room) -> list[int]:
    """Of its streams: 2 is closed."""
    return list(room.run("return streams.map(({ readyState }) => readyState)"))


def waits_with(room: Room, who: str, number: int) -> None:
    """A further waiter, and the stream of that number for all of them."""
    room.run("window.giveUp = new AbortController(); take(arguments[0], { signal: giveUp.signal })", who)
    room.until(lambda: len(states(room)) == number, lambda: f"{states(room)} streams", 5)


def test_an_older_stream_that_opens_late_does_not_close_the_newer_one(mine: Room) -> None:
    """Naive code keeps the one that opened last: nobody then watches for the second waiter."""
    waits_with(mine, "first", 1)
    waits_with(mine, "second", 2)
    mine.run("streams[0].onopen()")
    assert states(mine) == [0, 0]
    mine.run("streams[1].onopen()")
    assert states(mine) == [2, 0]


def test_a_tab_that_has_just_given_up_the_lead_takes_it_again(mine: Room) -> None:
    """The browser takes its time to free the Web Lock of the lead, and the tab waits for something again meanwhile."""
    waits_with(mine, "first", 1)
    mine.run("giveUp.abort()")
    mine.until(lambda: states(mine) == [2], "the stream is not closed", 5)
    waits_with(mine, "second", 2)
