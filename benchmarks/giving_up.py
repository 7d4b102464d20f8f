"""Does ``timeout=1.0`` end after a second while others ahead in the queue give up one by one?

A wait that begins anew with each change ahead of it takes three seconds and more.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import django

from benchmarks.children import child, value
from benchmarks.entries import GROUPS, find
from benchmarks.failures import reason

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TIMEOUT = 1.0
AHEAD = (2.4, 1.6, 0.8)  # seconds after the last one's start at which those ahead of it leave, the first in line last
APART = 0.3  # between one joining the queue and the next


@dataclass
class GivingUp:
    """How long a wait of ``asked`` seconds for a lock that is never freed took."""

    group: str
    entry: str
    asked: float
    seconds: float = 0.0
    error: str = ""


def work(pipe: Connection, group: str, label: str) -> None:
    """Run in a process of its own: open, and try for as long as told."""
    django.setup()
    entry = find(group, label)()
    try:
        entry.open()
        pipe.send(0.0)
        seconds = pipe.recv()
        began = time.perf_counter()
        if entry.attempt(seconds):
            raise RuntimeError("got a lock that somebody else holds")
        pipe.send(time.perf_counter() - began)
    except Exception as error:
        pipe.send(reason(error))
    finally:
        with contextlib.suppress(Exception):
            entry.close()


def last_in_line(group: str, label: str) -> float:
    """Return how long the last of a queue waited."""
    found: list[float] = []
    with contextlib.ExitStack() as stack:
        pipes = [child(stack, work, group, label) for _ in range(len(AHEAD) + 1)]
        for pipe in pipes:
            value(pipe)
        entry = find(group, label)()
        entry.open()
        stack.callback(entry.close)

        def queue() -> None:
            for place, (pipe, leaves) in enumerate(zip(pipes, AHEAD, strict=False)):
                pipe.send(leaves + APART * (len(AHEAD) - place))
                time.sleep(APART)
            pipes[-1].send(TIMEOUT)
            found.append(value(pipes[-1]))

        entry.cycle(queue)
    return found[0]


def measure(group: str) -> list[GivingUp]:
    """Try every entry of the group that can give up."""
    results = []
    for kind in GROUPS[group]:
        if kind.gives_up:
            row = GivingUp(group, kind.label, TIMEOUT)
            try:
                row.seconds = last_in_line(group, kind.label)
            except Exception as error:
                row.error = reason(error)
            results.append(row)
    return results
