"""Deferred clean-up: repeated until it succeeds, repeated for a time if the server may be late, and given up."""

from __future__ import annotations

import threading

import pytest

from django_distlock.backends.cleanup import PendingCleanup
from django_distlock.concurrency import clock
from tests.conftest import eventually

NAME = "distlock-test-undo"


class Server:
    """Undoes what it is asked to, unless it is down."""

    def __init__(self) -> None:
        self.now = clock.now()
        self.down = False
        self.undone: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self.pending = PendingCleanup(self.undo, NAME, window=2.0, patience=1.0)

    async def undo(self, what: str, until: float) -> None:
        if what != "another server":
            self.answers.wait(25)
        if self.down:
            raise OSError
        self.undone.append(what)

    def later(self, seconds: float) -> bool:
        """What the keepalive thread does after that time; is anything pending?"""
        self.now += seconds
        self.pending.tick(self.now)
        eventually(lambda: not any(each.name == NAME for each in threading.enumerate()), "a thread does not end")
        return bool(self.pending.requests)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(clock, "now", lambda: made.now)
    return made


def test_r7_what_may_come_later_is_undone_again_until_the_window_is_over(server: Server) -> None:
    server.pending.add("token", "a", 60.0, True)
    seen = [(server.later(seconds), len(server.undone)) for seconds in (0.1, 1.0, 1.0)]
    assert seen == [(True, 1), (True, 2), (False, 3)]


@pytest.mark.parametrize(("ttl", "may_be_late", "ends"), [(60.0, False, False), (3.0, True, True)])
def test_r7_a_server_that_is_down_is_asked_again_until_the_lease_has_ended(
    server: Server, ttl: float, may_be_late: bool, ends: bool
) -> None:
    server.down = True
    server.pending.add("token", "a", ttl, may_be_late)
    assert server.later(4.9)
    assert server.later(0.3) != ends
    server.down = False
    assert not server.later(10.0)
    assert server.undone == ([] if ends else ["a"])


def test_r7_a_server_that_hangs_does_not_hold_up_another_one(server: Server) -> None:
    server.answers.clear()
    for number in range(20):
        server.pending.add(f"token {number}", "a", 3.0, False, lane=1)
    server.pending.add("last", "another server", 3.0, False, lane=2)
    eventually(lambda: server.undone == ["another server"], "it waits behind the server that hangs")
    server.answers.set()
    assert not server.later(0)
