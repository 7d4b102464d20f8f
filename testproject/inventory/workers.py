"""Worker processes that sell one item at once; one of them may be stopped in the middle of a sale.

Spawned: each loads Django anew, on the database that the environment names.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

SECONDS = 60
PACKING = 0.002  # seconds of work between the look and the write


class WorkerError(Exception):
    """A worker process died or did not finish in time."""


def work(pipe: Connection) -> None:
    """Load Django, then sell at each order until the order is None."""
    import django

    django.setup()
    from django.db import connection

    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        connection.ensure_connection()
        pipe.send(sell_all(*order))
        connection.close()


def sell_all(slug: str, pk: int, using: str, sleepy: bool) -> tuple[int, list[str]]:
    """Sell until there is nothing left; refused late writes and errors. A sleepy worker stops itself once."""
    from django.db import IntegrityError

    from django_distlock import LockLost

    from .sales import SELL

    def pack() -> None:
        nonlocal sleepy
        time.sleep(PACKING)
        if sleepy:
            sleepy = False
            os.kill(os.getpid(), signal.SIGSTOP)

    late = 0
    while True:
        try:
            if not SELL[slug](pk, pack, using):
                return late, []
        except LockLost as error:
            late += "came too late" in str(error)  # the others tell after the sale that the lease is over
        except IntegrityError as error:
            if "stale fencing token" not in str(error):
                return late, [f"{type(error).__name__}: {error}"]
            late += 1
        except Exception as error:
            return late, [f"{type(error).__name__}: {error}"]


class Crew:
    """Running workers; the first is the sleepy one."""

    def __init__(self, processes: list[Any], pipes: list[Connection]) -> None:
        self.processes, self.pipes = processes, pipes

    def sell(self, slug: str, pk: int, *, using: str, pausing: bool) -> tuple[int, list[str]]:
        """All sell at once until there is nothing left; refused late writes and errors of all.

        `pausing`: the first one goes ahead until it sleeps in the middle of its sale, and wakes when the others are
        done.
        """
        first, *others = self.pipes
        first.send((slug, pk, using, pausing))
        if pausing:
            self._wait_for_stop()
        try:
            for pipe in others:
                pipe.send((slug, pk, using, False))
            outcomes = [receive(pipe) for pipe in others]
        finally:
            os.kill(self.processes[0].pid, signal.SIGCONT)
        outcomes.append(receive(first))
        return sum(late for late, _ in outcomes), [error for _, errors in outcomes for error in errors]

    def _wait_for_stop(self) -> None:
        pid, deadline = self.processes[0].pid, time.monotonic() + SECONDS
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is None:
            if not self.processes[0].is_alive() or time.monotonic() > deadline:
                raise WorkerError("The worker that was to fall asleep did not.")
            time.sleep(0.005)


@contextmanager
def crew(size: int) -> Iterator[Crew]:
    """`size` workers that are ready; ended with the block whatever happened."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            receive(pipe)
        yield Crew(processes, pipes)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.join()


def receive(pipe: Connection) -> Any:
    try:
        if not pipe.poll(SECONDS):
            raise WorkerError(f"A worker did not finish within {SECONDS} s.")
        return pipe.recv()
    except EOFError:
        raise WorkerError("A worker died.") from None
