"""R5: when the watchdog ends the caller's connection, by a clock of our own."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django_distlock.backends.postgres.watched import Watched, look_after
from psycopg import pq

from django_distlock.backends.postgres import watched as postgres_watched

if TYPE_CHECKING:
    from collections.abc import Iterator

# The watch begins 15 ms after the deadline, and the caller must be back 50 ms after it; a few are left to the driver.
IN_TIME = 0.033
NEVER_BEFORE = 0.02


class Clock:
    """The clock of a keepalive thread that looks whenever it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.slow = 0.0  # how long a look takes
        self.shut: list[float] = []
        monkeypatch.setattr(postgres_watched, "monotonic", lambda: self.now + self.slow)
        sockets = SimpleNamespace(
            readable=postgres_watched.sockets.readable, shut=lambda fd: self.shut.append(self.now)
        )
        monkeypatch.setattr(postgres_watched, "sockets", sockets)

    def run(self, watched: Watched, looks: int, bad: dict[int, tuple[float, float]]) -> float | None:
        """Seconds from the first look to the end of the connection. ``bad``: look -> how late it comes, how long it
        takes."""
        started = watched.until
        due = started
        for number in range(looks):
            late, self.slow = bad.get(number, (0.0001, 0.0001))
            self.now = max(due, self.now) + late
            due = watched.look(self.now)
            if self.shut:
                return self.shut[0] - started
            self.now += self.slow
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def watched(ends: tuple[socket.socket, socket.socket]) -> Watched:
    conn = SimpleNamespace(socket=ends[0].fileno(), transaction_status=pq.TransactionStatus.ACTIVE)
    connection: Any = SimpleNamespace(alias="postgres", connection=SimpleNamespace(pgconn=conn))
    return Watched(connection, 1000.0)


def watched_connection(like: Watched) -> Any:
    return SimpleNamespace(alias="postgres", connection=SimpleNamespace(pgconn=like.conn))


@pytest.mark.parametrize("bad", [None, *range(12)])
@pytest.mark.parametrize("how", [(0.0001, 0.004), (0.011, 0.0001)], ids=["slow", "late"])
def test_r5_one_bad_look_does_not_cost_the_deadline(
    clock: Clock, watched: Watched, bad: int | None, how: tuple[float, float]
) -> None:
    took = clock.run(watched, 100, {} if bad is None else {bad: how})
    assert took is not None
    late = how[0] if how[0] > 0.01 and bad is not None else 0.0
    assert NEVER_BEFORE <= took <= IN_TIME + 2 * late


def test_r5_looks_that_say_nothing_do_not_end_it(clock: Clock, watched: Watched) -> None:
    """Threads of this process fight for the interpreter: the caller does not get it either."""
    assert clock.run(watched, 99, dict.fromkeys(range(99), (0.006, 0.006))) is None
    took = clock.run(watched, 1, {0: (0.006, 0.006)})
    assert took is not None, "but not for ever"


def test_r5_a_look_leaves_others_the_time_to_take_the_interpreter(
    clock: Clock, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has read the answer, so the socket is empty, and waits for the interpreter like others. A look that
    does not wait is through before any of them has woken up, and takes that for a silent server."""

    def others_take_it(seconds: float) -> None:
        clock.slow = 0.006 if seconds > 0 else 0.0

    monkeypatch.setattr(postgres_watched, "time", SimpleNamespace(sleep=others_take_it))
    for _ in range(99):
        clock.slow = 0.0
        clock.now = look_after([watched], clock.now) + 0.0001
    assert not clock.shut


def test_r5_a_crowd_at_a_server_that_hangs_is_in_time(
    clock: Clock, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller's connection is looked at in its turn; the time for others is given once."""
    slept: list[float] = []
    monkeypatch.setattr(postgres_watched, "time", SimpleNamespace(sleep=slept.append))
    crowd = [watched, *(Watched(watched_connection(watched), 1000.0) for _ in range(49))]
    while clock.now < 1000.0 + IN_TIME:
        clock.now = look_after(crowd, clock.now) + 0.0001
        if len(clock.shut) >= len(crowd):
            break
    assert len(clock.shut) == len(crowd)
    assert len(slept) <= 12


def test_r5_server_that_answered_is_left_alone(
    clock: Clock, watched: Watched, ends: tuple[socket.socket, socket.socket]
) -> None:
    """The caller has not read the answer yet."""
    assert clock.run(watched, 3, {}) is None
    ends[1].send(b"x")
    assert clock.run(watched, 200, {}) is None
