"""Deferred clean-up: repeated until it succeeds, repeated for a time if the server may be late, and given up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from django_distlock.backends.cleanup import UNDO_PAUSE, PendingCleanup
from django_distlock.concurrency import clock
from django_distlock.concurrency.clock import now as monotonic
from tests.conftest import eventually

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow

NAME = "distlock-test-undo"


class Server:
    """Undoes what it is asked to, unless it is down."""

    def __init__(self) -> None:
        self.now = monotonic()
        self.down = False
        self.undone: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self.pending = PendingCleanup(self.undo, NAME, window=2.0, patience=1.0)

    def undo(self, what: str, until: float) -> Flow[None]:
        assert until == self.now + 1.0
        if what != "another server":
            self.answers.wait(25)
        if self.down:
            raise OSError
        self.undone.append(what)
        yield from ()

    def settled(self) -> None:
        eventually(lambda: not any(each.name == NAME for each in threading.enumerate()), "a thread does not end")

    def later(self, seconds: float) -> float | None:
        """What the keepalive thread does after that time."""
        self.now += seconds
        due = self.pending.tick(self.now)
        self.settled()
        return due


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(clock, "now", lambda: made.now)
    return made


def test_what_may_come_later_is_undone_again_until_the_window_is_over(server: Server) -> None:
    server.pending.add("token", "a", 60.0, True)
    server.settled()
    assert server.later(0.1) == pytest.approx(server.now + UNDO_PAUSE)
    assert server.undone == ["a"], "not due"
    server.later(1.0)
    assert server.undone == ["a"] * 2
    assert server.pending.requests
    server.later(1.0)
    assert server.undone == ["a"] * 3
    assert not server.pending.requests


def test_a_server_that_is_down_is_asked_again_until_it_has_undone_what_is_certain(server: Server) -> None:
    server.down = True
    server.pending.add("token", "a", 60.0, False)
    server.settled()
    server.later(10.0)
    assert server.pending.requests
    server.down = False
    server.later(10.0)
    assert server.undone == ["a"]
    assert not server.pending.requests


def test_it_is_given_up_when_the_lease_has_ended(server: Server) -> None:
    server.down = True
    server.pending.add("token", "a", 3.0, True)
    server.later(4.9)
    assert server.pending.requests
    server.later(0.3)
    assert not server.pending.requests


def test_a_server_that_hangs_does_not_hold_up_another_one(server: Server) -> None:
    server.answers.clear()
    for number in range(20):
        server.pending.add(f"token {number}", "a", 3.0, False, lane=1)
    server.pending.add("last", "another server", 3.0, False, lane=2)
    eventually(lambda: server.undone == ["another server"], "it waits behind the server that hangs")
    assert "last" not in server.pending.requests
    server.answers.set()
    server.settled()
    assert not server.pending.requests
