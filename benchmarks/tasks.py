"""A thousand asyncio tasks of one process on one lock: all served, in order, on few sessions and threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import django

from benchmarks.failures import reason
from benchmarks.servers import SERVERS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RIVALS = 20  # tasks that compete again and again, for the fairness figure
TURNS = 40  # of each, at least: with fewer, the turn that one has more at the end would look like a privilege
PATIENCE = 90.0
SAMPLE_EVERY = 0.01


@dataclass
class Crowd:
    """What one process with many tasks did, and the most sessions and threads that were seen from outside."""

    group: str
    tasks: int
    served: int = 0
    seconds: float = 0.0
    overlaps: int = 0
    out_of_order: int = 0
    fair: float = 0.0
    rate: float = 0.0
    sessions: int = 0
    threads: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    error: str = ""


class Room:
    """The place that only one task may be in; it yields to the loop while inside, so that a second could enter."""

    def __init__(self) -> None:
        self.inside = self.overlaps = 0
        self.order: list[int] = []

    async def visit(self, number: int) -> None:
        """Note who came in, and whether somebody else was there."""
        self.inside += 1
        self.overlaps += self.inside > 1
        self.order.append(number)
        await asyncio.sleep(0)
        self.inside -= 1


async def crowd(alias: str, crowd: Crowd) -> None:
    """Let every task take the lock once; tasks ask in the order of their numbers."""
    from django_distlock import advisory_lock

    room, errors = Room(), Counter[str]()

    async def one(number: int) -> None:
        try:
            async with advisory_lock("bench-crowd", using=alias, timeout=PATIENCE):
                await room.visit(number)
        except Exception as error:
            errors[reason(error)] += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.tasks):
            group.create_task(one(number))
    crowd.seconds = time.perf_counter() - began
    crowd.served, crowd.overlaps, crowd.errors = len(room.order), room.overlaps, dict(errors)
    crowd.out_of_order = sum(later < earlier for earlier, later in zip(room.order, room.order[1:], strict=False))


async def rivals(alias: str, crowd: Crowd, seconds: float) -> None:
    """Let a few tasks take the lock again and again for so long, and longer on a slow engine; compare their shares."""
    from django_distlock import advisory_lock

    room, shares = Room(), Counter[int]()
    began = time.perf_counter()

    async def one(number: int) -> None:
        while time.perf_counter() - began < seconds or shares.total() < RIVALS * TURNS:
            async with advisory_lock("bench-rivals", using=alias, timeout=PATIENCE):
                await room.visit(number)
            shares[number] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(RIVALS):
            group.create_task(one(number))
    crowd.fair = min(shares[number] for number in range(RIVALS)) / max(shares.values())
    crowd.rate = shares.total() / (time.perf_counter() - began)
    crowd.overlaps += room.overlaps


async def both(alias: str, result: Crowd, seconds: float) -> None:
    """Run the two experiments on one loop."""
    await crowd(alias, result)
    await rivals(alias, result, seconds)


def work(pipe: Connection, group: str, tasks: int, seconds: float) -> None:
    """Run in a process of its own, whose sessions and threads the parent counts from outside."""
    django.setup()
    result = Crowd(group, tasks)
    try:
        pipe.send("ready")
        asyncio.run(both(SERVERS[group].lock_alias, result, seconds))
    except Exception as error:
        result.error = reason(error)
    pipe.send(result)
    pipe.recv()


def measure(group: str, tasks: int, seconds: float) -> Crowd:
    """Start the process, ask the server for its sessions and the kernel for its threads until it is done."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, group, tasks, seconds), daemon=True)
    process.start()
    theirs.close()
    sessions = threads = 0
    try:
        if not pipe.poll(PATIENCE):
            return Crowd(group, tasks, error=f"not ready after {PATIENCE:g} s")
        pipe.recv()
        deadline = time.monotonic() + seconds + PATIENCE
        while not pipe.poll(SAMPLE_EVERY):
            if time.monotonic() > deadline:
                return Crowd(group, tasks, error=f"no end after {seconds + PATIENCE:g} s")
            sessions = max(sessions, SERVERS[group].sessions_of(process.pid or 0))
            threads = max(threads, count_threads(process.pid or 0))
        result: Crowd = pipe.recv()
        result.sessions, result.threads = sessions, threads
        pipe.send(None)
        process.join(10)
        return result
    except EOFError:
        return Crowd(group, tasks, error=f"the process ended with status {process.exitcode}")
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def count_threads(pid: int) -> int:
    """Return how many threads the kernel runs for a process, the main one included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Threads:"):
            return int(line.split()[1])
    return 0
