"""Processes that stand for election and write down when they led."""

from __future__ import annotations

import os
import queue
import signal
import time
from typing import TYPE_CHECKING, Any

from django_distlock import Leader, UnsupportedOperation
from tests.faults.history import Journal
from tests.support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

    from django_distlock.locks.leader import Term
    from tests.support.child import Link

TTL = 0.6
# Seconds after the end of the lock of a dead leader within which another one must lead.
ALLOWED = 1.0
PATIENCE = 20.0
# What a candidate says first.
STANDS = "stands"


def stand(link: Link, using: str, name: str, path: str, ttl: float | None, alone: bool) -> None:
    """Lead whenever elected, until told to end; say the time of each election. ``alone``: a broken candidate, who
    stands where nobody else does."""
    journal = Journal(path)
    began = time.monotonic()
    tokens: dict[Term, str] = {}

    def lead(term: Term) -> None:
        lease = term._lease
        try:
            fence = term.fence
        except UnsupportedOperation:
            fence = None
        tokens[term] = journal.granted(name, began, valid_until=lease.valid_until, fence=fence)
        link.say(time.monotonic())
        while term.wait(0.05):
            journal.seen(tokens[term], lease.valid_until)

    def step_down(term: Term) -> None:
        if term in tokens:
            journal.releasing(tokens[term])

    office = f"{name}-{os.getpid()}" if alone else name
    link.say(STANDS)
    options: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
    with Leader(office, using=using, on_elected=lead, on_demoted=step_down, **options):
        link.hear()


class Candidates:
    """So many of them; those that were killed are replaced."""

    def __init__(self, size: int, using: str, name: str, path: Path, ttl: float | None, alone: bool = False) -> None:
        self._arguments = (using, name, str(path), ttl, alone)
        self.children = [Child(stand, *self._arguments) for _ in range(size)]
        self.killed: dict[int, float] = {}
        self._standing: set[int] = set()

    def _stand(self) -> None:
        """Wait until all do: on a busy machine a process takes seconds to start, and is nobody's successor before."""
        for child in self.children:
            if child.pid not in self._standing:
                assert child.hear(timeout=PATIENCE) == STANDS
                self._standing.add(child.pid)

    def elected(self) -> tuple[Child, float]:
        """The next one to say that it was elected, and when that was."""
        self._stand()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for child in self.children:
                try:
                    return child, child.hear(timeout=0.001)
                except AssertionError as error:
                    if "was silent" not in str(error):
                        raise
        raise queue.Empty

    def kill(self, child: Child) -> float:
        """SIGKILL, and another candidate in its place; when."""
        when = self.killed[child.pid] = time.monotonic()
        child.signal(signal.SIGKILL)
        self.children[self.children.index(child)] = Child(stand, *self._arguments)
        child.process.wait(PATIENCE)
        child.__exit__(None, None, None)
        return when

    def close(self) -> None:
        for child in self.children:
            child.say(None)
        for child in self.children:
            child.__exit__(None, None, None)
