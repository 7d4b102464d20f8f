"""Does the cost of a lock depend on how many other locks are held? It should not."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import django

from benchmarks.entries import GROUPS
from benchmarks.entries.ours import Ours, close_backends
from benchmarks.failures import reason
from benchmarks.pinning import pinned
from benchmarks.servers import SERVERS
from benchmarks.uncontended import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from benchmarks.entries.base import Entry

PER_PROCESS = 1_000  # DISTLOCK's MAX_HELD: no process may hold more
PATIENCE = 120.0
HERE, ELSEWHERE = "this process", "other processes"


@dataclass
class Growth:
    """The cost of one pair while ``held`` other locks are held, and its ratio to the bare driver of the same moment."""

    group: str
    where: str
    held: int
    median_us: float = 0.0
    ratio: float = 0.0
    against_fewest: float = 1.0  # this ratio over the one with the fewest locks held
    error: str = ""


def hold(pipe: Connection, alias: str, first: int, count: int) -> None:
    """Hold locks in a process of its own until told to stop."""
    django.setup()
    from django_distlock import advisory_lock

    with contextlib.ExitStack() as stack:
        try:
            for number in range(first, first + count):
                stack.callback(advisory_lock(f"other-{number}", using=alias).acquire().release)
            pipe.send(None)
        except Exception as error:
            pipe.send(reason(error))
        pipe.recv()
    close_backends()


@contextlib.contextmanager
def held_elsewhere(alias: str, count: int) -> Generator[None]:
    """Hold ``count`` locks in as many other processes as that takes."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes = []
        for first in range(0, count, PER_PROCESS):
            pipe, theirs = context.Pipe()
            args = (theirs, alias, first, min(PER_PROCESS, count - first))
            process = context.Process(target=hold, args=args, daemon=True)
            process.start()
            theirs.close()
            stack.callback(dismiss, process, pipe)
            pipes.append(pipe)
        for pipe in pipes:
            error = pipe.recv() if pipe.poll(PATIENCE) else f"no answer within {PATIENCE:g} s"
            if error:
                raise RuntimeError(f"a process that should hold {count} other locks failed: {error}")
        yield


def dismiss(process: SpawnProcess, pipe: Connection) -> None:
    """Have a process release what it holds: a lease of one that is killed would live on for its TTL."""
    with contextlib.suppress(OSError):
        pipe.send(None)
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()


@contextlib.contextmanager
def held_here(alias: str, count: int) -> Generator[None]:
    """Hold ``count`` locks in this process, and give every one back."""
    from django_distlock import advisory_lock

    with contextlib.ExitStack() as stack:
        for number in range(count):
            stack.callback(advisory_lock(f"mine-{number}", using=alias).acquire().release)
        yield


def measure(group: str, rounds: int, elsewhere: tuple[int, ...], here: tuple[int, ...]) -> list[Growth]:
    """Measure the pair of ours beside the bare driver's, with more and more other locks held."""
    server = SERVERS[group]
    bare, ours = GROUPS[group][0](), next(kind for kind in GROUPS[group] if issubclass(kind, Ours))()
    results = []
    with pinned(server.pids), contextlib.ExitStack() as stack:
        for entry in (bare, ours):
            entry.open()
            stack.callback(entry.close)
        for where, counts, hold in ((ELSEWHERE, elsewhere, held_elsewhere), (HERE, here, held_here)):
            rows = [Growth(group, where, count) for count in counts]
            for row in rows:
                try:
                    with hold(server.lock_alias, row.held):
                        row.median_us, row.ratio = compare(bare, ours, rounds)
                except Exception as error:
                    row.error = reason(error)
                else:
                    row.against_fewest = row.ratio / (rows[0].ratio or row.ratio)
            results += rows
    return results


def compare(bare: Entry, ours: Entry, rounds: int) -> tuple[float, float]:
    """Return our median in microseconds and its ratio to the bare driver's, from slices in turn."""

    def samples() -> Iterator[tuple[list[int], list[int]]]:
        for turn in range(-WARM_UP, rounds):
            pair = bare.slice(bare.pairs), ours.slice(ours.pairs)
            if turn >= 0:
                yield pair

    theirs, own = zip(*samples(), strict=True)
    median = statistics.median(value for taken in own for value in taken)
    return median / 1000, median / statistics.median(value for taken in theirs for value in taken)
