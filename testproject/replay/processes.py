"""Processes that a replay starts, each for one function."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from django.db import connections

from . import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

SECONDS = 180
FORK = multiprocessing.get_context("fork")  # this process has loaded everything: that takes seconds


class Member:
    """A process that calls `function` with its end of a pipe."""

    def __init__(self, others: Sequence[Member], function: Callable[..., Any]) -> None:
        connections.close_all()  # a connection must not be used on both sides of a fork
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(theirs, list(others), function), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def result(self) -> Any:
        """What the function has returned."""
        try:
            if not self.pipe.poll(SECONDS):
                raise ReplayError(f"A process did not finish within {SECONDS} s.")
            error, answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise ReplayError("A process died.") from None
        if error:
            raise ReplayError(f"A process failed: {error}")
        return answer

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """From the SIGSTOP that it sends to itself until the end of the with-block."""
        state = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        message = "The process that was to fall asleep did not."
        wait_for(lambda: os.waitid(os.P_PID, self.pid, state) is not None, message, [self])
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def wait_for(condition: Callable[[], bool], complaint: str, members: Sequence[Member] = ()) -> None:
    """ReplayError with the complaint if it takes too long, or if one of the members ends."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline or not all(member.process.is_alive() for member in members):
            raise ReplayError(complaint)
        time.sleep(0.005)


def work(pipe: Connection, others: Sequence[Member], function: Callable[..., Any]) -> None:
    for other in others:
        other.pipe.close()  # else they would not notice the end of the replay
    try:
        pipe.send((None, function(pipe)))
    except Exception as error:
        pipe.send((f"{type(error).__name__}: {error}", None))


class Team(list[Member]):
    """Members that are killed at the end of the with-block, if they have not ended by then."""

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Member:
        """A process that calls `function` with its end of a pipe, and these arguments."""
        self.append(Member(self, lambda pipe: function(pipe, *arguments, **options)))
        return self[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        for member in self:
            if kind is None:
                member.process.join(SECONDS)
            member.process.kill()
            member.process.join()
            member.pipe.close()
