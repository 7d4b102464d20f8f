"""Bounds on time, and what the machine's share in a time is.

The machine can make a program late and cannot make it early.  Linux counts for each thread how long it stood ready and
had no processor (/proc/PID/task/TID/schedstat), so a bound need be neither wide nor tried again: :func:`within` takes
off the time that this test process, its children and its servers stood ready since the test began.  It never takes off
more than the bound itself or ``MOST_OFF``, so that a bound keeps its meaning on any machine; on one that is idle it
takes off nothing.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from tests.support.services.files import processes_path, read_json
from tests.support.services.process import process_tree

MOST_OFF = 0.25  # seconds; how long a thread of a crowd of ten waits for its turn on two busy processors
NANOSECOND = 1e-9

_at_start: dict[str, float] | None = None


class TooSlow(AssertionError):
    """It took longer than it may, or the machine was too busy to show anything."""


def start(measures: bool) -> None:
    """A test begins; looking costs ten milliseconds, which those without a bound are spared."""
    global _at_start
    _at_start = waits() if measures else None


def within(seconds: float, most: float, *, least: float = -math.inf, what: object = "it") -> None:
    """``seconds`` is what was measured, ``most`` what it may be; ``what`` says more in the message.

    Raises AssertionError if it is less than ``least``, and TooSlow if it is more than ``most`` without the machine's
    share.
    """
    assert seconds >= least, f"{what} took {seconds:.4f} s, which is less than {least:g} s"
    if seconds <= most:
        return
    late = ready_since_start()
    if seconds > most + min(late, max(most, MOST_OFF)):
        raise TooSlow(f"{what} took {seconds:.4f} s, and may take {most:g} s (ready without a processor: {late:.4f} s)")


def ready_since_start() -> float:
    """Seconds that the threads of this process, its children and its servers were ready and had no processor since the
    test began, in sum; 0 outside a test that measures."""
    if _at_start is None:
        return 0.0
    return sum(max(0.0, seconds - _at_start.get(thread, 0.0)) for thread, seconds in waits().items())


def waits() -> dict[str, float]:
    """By thread: the seconds that it has been ready without a processor since it was started."""
    servers = read_json(processes_path()).get("servers", {})
    roots = [os.getpid(), *(record["pid"] for record in servers.values())]
    found: dict[str, float] = {}
    for pid in set(process_tree(*roots)):
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, IndexError):  # it has ended, or the kernel does not count
                found[str(stat)] = int(stat.read_text().split()[1]) * NANOSECOND  # the second number: on a run queue
    return found
