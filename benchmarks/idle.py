"""Fifty waiters whose lock is not freed: how many requests a second they send to the server while nothing happens."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import django

from benchmarks.children import PATIENCE, child, value
from benchmarks.entries import GROUPS, find
from benchmarks.entries.base import nothing
from benchmarks.failures import reason
from benchmarks.servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.entries.base import Entry

PROCESSES, NAMES = 5, 10  # waiters of one process for one name could share a place in the server's queue
SETTLE = 1.0  # seconds until everybody has asked and been refused


@dataclass
class Idle:
    """Requests per second that reach the server while ``waiters`` wait, renewals and heartbeats included."""

    group: str
    entry: str
    waiters: int
    per_second: float = 0.0
    error: str = ""


def names() -> list[str]:
    """Return the names that are waited for."""
    return [f"idle-{number}" for number in range(NAMES)]


def opened(group: str, label: str, stack: contextlib.ExitStack) -> list[Entry]:
    """Open an entry for every name."""
    entries = []
    for name in names():
        entry = find(group, label)()
        entry.name = name
        entry.open()
        stack.callback(entry.close)
        entries.append(entry)
    return entries


def wait(pipe: Connection, group: str, label: str) -> None:
    """Run in a process of its own: open, report, and wait in one thread per name once told to."""
    django.setup()
    errors: list[str] = []

    def one(entry: Entry) -> None:
        try:
            entry.cycle(nothing)
        except Exception as error:
            errors.append(reason(error))

    with contextlib.ExitStack() as stack:
        try:
            entries = opened(group, label, stack)
            pipe.send(0.0)
            pipe.recv()
            threads = [threading.Thread(target=one, args=(entry,), daemon=True) for entry in entries]
            for thread in threads:
                thread.start()
            pipe.send(0.0)
            for thread in threads:
                thread.join(PATIENCE)
            pipe.send(errors[0] if errors else 0.0)
        except Exception as error:
            pipe.send(reason(error))


def hold(entries: Sequence[Entry], body: Callable[[], object]) -> None:
    """Hold the lock of every entry at once while ``body`` is called."""
    if not entries:
        body()
    else:
        entries[0].cycle(lambda: hold(entries[1:], body))


def count(group: str, label: str, seconds: float) -> float:
    """Return the requests per second while every name is held here and waited for elsewhere."""
    server, found = SERVERS[group], []
    with contextlib.ExitStack() as stack:
        pipes = [child(stack, wait, group, label) for _ in range(PROCESSES)]
        for pipe in pipes:
            value(pipe)
        entries = opened(group, label, stack)

        def watch() -> None:
            for pipe in pipes:
                pipe.send("wait")
            for pipe in pipes:
                value(pipe)
            time.sleep(SETTLE)
            first = server.requests()
            before, began = server.requests(), time.perf_counter()
            time.sleep(seconds)
            counted = server.requests() - before - (before - first)  # asking is a request as well
            found.append(max(0, counted) / (time.perf_counter() - began))

        hold(entries, watch)
        for pipe in pipes:
            value(pipe)
    return found[0]


def measure(group: str, seconds: float) -> list[Idle]:
    """Let the waiters of every entry wait in turn."""
    results = []
    for kind in GROUPS[group]:
        if kind.waits:
            row = Idle(group, kind.label, PROCESSES * NAMES)
            try:
                row.per_second = count(group, kind.label, seconds)
            except Exception as error:
                row.error = reason(error)
            results.append(row)
    return results
