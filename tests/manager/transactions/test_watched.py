"""R5: when a statement on the caller's connection that is not answered ends that connection."""

from __future__ import annotations

import math
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.waiting import WAIT_R, wait

from django_distlock.backends.postgres import statements
from django_distlock.backends.postgres.statements import LATE, PATIENCE, SILENT, Bounded
from django_distlock.concurrency import clock as real
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import now as monotonic
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# The time of a statement is over 15 ms after the deadline of its caller, who must be back 50 ms after it.
IN_TIME = 0.035


class Connection:
    """As much of psycopg's connection as a statement needs, over one end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.pgconn = SimpleNamespace(socket=end.fileno())

    def wait(self, generator: Any, interval: float = 0.1) -> Any:
        return wait(generator, self.pgconn.socket, interval=interval)

    def execute(self) -> bytes:
        """Psycopg's way: a generator that says that it wants to read, until it has."""

        def fetch() -> Generator[Any, Any, bytes]:
            while not (yield WAIT_R):
                pass
            return self.end.recv(100)

        return bytes(self.wait(fetch()))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield Connection(ours), theirs
    ours.close()
    theirs.close()


class Clock:
    """A clock that goes on only while somebody polls in vain; ``late``: how much longer a poll takes than it should."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.late: Callable[[int], float] = lambda number: 0.0002
        self.polls = 0
        self.answers_at = math.inf
        monkeypatch.setattr(real, "now", lambda: self.now)
        monkeypatch.setattr(statements, "READY", SimpleNamespace(poll=self.poll))

    def poll(self, fd: int, write: bool, until: float) -> bool:
        ready = sockets.READY.poll(fd, write, 0) or self.answers_at <= until
        if not ready:
            self.now = max(self.now, until) + self.late(self.polls)
            self.polls += 1
        return ready


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_r5_a_silent_server_ends_the_connection_in_time(ends: tuple[Connection, socket.socket], clock: Clock) -> None:
    connection, _ = ends
    bounded = Bounded(connection, 1000.1)
    with bounded:
        assert connection.execute() == b"", "the end of the conversation"
    assert bounded.ended
    assert SILENT <= clock.now - 1000.1 <= IN_TIME


@pytest.mark.parametrize("bad", [0, 1])
def test_r5_one_late_poll_does_not_end_it_and_costs_little(
    ends: tuple[Connection, socket.socket], clock: Clock, bad: int
) -> None:
    """It came late: at the deadline itself, or when the server was given its last chance."""
    late = 2 * LATE
    clock.late = lambda number: late if number == bad else 0.0002
    connection, _ = ends
    bounded = Bounded(connection, 1000.1)
    with bounded:
        connection.execute()
    assert bounded.ended
    assert clock.polls == 2 + bad
    assert clock.now - 1000.1 <= (1 + bad) * SILENT + late + 0.001


def test_r5_polls_that_are_all_late_do_not_end_it_but_not_for_ever(
    ends: tuple[Connection, socket.socket], clock: Clock
) -> None:
    """Threads of this process fight for the interpreter, or processes for the host: the server may have answered."""
    clock.late = lambda number: 0.03
    connection, _ = ends
    bounded = Bounded(connection, 1000.1)
    with bounded:
        connection.execute()
    assert bounded.ended
    assert PATIENCE <= clock.now - 1000.1 <= PATIENCE + SILENT + 0.031


def test_r5_a_crowd_at_a_server_that_hangs_is_in_time() -> None:
    """Fifty threads, each with a silent connection and the same deadline: each ends its own, within R5's 50 ms. They
    wait for each other in the interpreter, which is no wait for a processor."""
    deadline = monotonic() + 0.4

    def call(_: int) -> tuple[bool, float]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            bounded = Bounded(Connection(ours), deadline)
            with bounded:
                assert bounded._raw.execute() == b""
            return bounded.ended, monotonic() - deadline

    with ThreadPoolExecutor(50) as pool:
        results = list(pool.map(call, range(50)))
    assert all(ended for ended, _ in results)
    within(max(late for _, late in results), 0.05, least=SILENT, what="the last of the crowd")


def test_r5_a_server_that_answers_meanwhile_is_left_alone(ends: tuple[Connection, socket.socket], clock: Clock) -> None:
    connection, theirs = ends

    def late(number: int) -> float:
        if number == 2:
            theirs.send(b"granted")
        return 0.03

    clock.late = late
    bounded = Bounded(connection, 1000.1)
    with bounded:
        assert connection.execute() == b"granted"
    assert not bounded.ended


def test_r5_an_answer_that_lies_there_at_the_deadline_is_read(
    ends: tuple[Connection, socket.socket], clock: Clock
) -> None:
    connection, theirs = ends
    theirs.send(b"granted")
    clock.now = 1001.0
    bounded = Bounded(connection, 1000.1)
    with bounded:
        assert connection.execute() == b"granted"
    assert not bounded.ended


def test_without_an_end_it_waits_for_the_answer(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    theirs.send(b"granted")
    with Bounded(connection, math.inf):
        assert connection.execute() == b"granted"


def test_the_connection_is_left_as_it_was(ends: tuple[Connection, socket.socket]) -> None:
    """Also by a lock that is acquired within another, in a wrapper of the caller's statements."""
    connection, theirs = ends
    with Bounded(connection, monotonic() + 5):
        with Bounded(connection, monotonic() + 5):
            theirs.send(b"inner")
            assert connection.execute() == b"inner"
        assert "wait" in vars(connection)
        theirs.send(b"outer")
        assert connection.execute() == b"outer"
    assert "wait" not in vars(connection)


def test_far_from_the_deadline_psycopg_waits_by_itself(ends: tuple[Connection, socket.socket], clock: Clock) -> None:
    """In pieces, between which signals are handled."""
    connection, theirs = ends
    theirs.send(b"granted")
    with Bounded(connection, 1001.0):
        assert connection.execute() == b"granted"
    assert clock.polls == 0
