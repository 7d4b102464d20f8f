"""A racy counter in a plain file (W1) and an oracle of the kernel's own (W2), and the verdict on what they saw.

All that is seen goes to one journal, line by line in single appends, so that one that is killed leaves what it saw:

    w <value> <section>          wrote that value to the counter: a value that is written twice is a lost update
    o <section> <other> <time>   met another section inside: the kernel had given its flock away
    s <section>                  found at its end that its lock was lost
    e <kind>                     a lock failed with that error
    f <kind>                     a fault that the worker does to itself: cancel, fork
    h <what>                     harm: something that must never happen
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

COUNTER, ORACLE, JOURNAL = "counter", "oracle", "journal"


class Desk:
    """The files of one run, as one thread has opened them."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.counter = os.open(self.folder / COUNTER, os.O_RDWR | os.O_CREAT)
        self.oracle = os.open(self.folder / ORACLE, os.O_RDWR | os.O_CREAT)
        self.journal = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, line: str) -> None:
        os.write(self.journal, f"{line}\n".encode())

    @contextlib.contextmanager
    def inside(self, token: str, held: Callable[[], bool]) -> Iterator[None]:
        """Around what only one may do at a time. The oracle notices who is not alone, and keeps nobody out: the counter
        has to find that out by itself."""
        try:
            fcntl.flock(self.oracle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self.oracle, token.ljust(40).encode(), 0)
        except BlockingIOError:
            other = os.pread(self.oracle, 40, 0).decode().strip() or "0"
            self.note(f"o {token} {other} {time.monotonic()}")
        try:
            value = int(os.pread(self.counter, 20, 0) or 0) + 1
            yield
            if held():
                os.pwrite(self.counter, str(value).ljust(20).encode(), 0)
                self.note(f"w {value} {token}")
        finally:
            fcntl.flock(self.oracle, fcntl.LOCK_UN)

    def close(self) -> None:
        for fd in (self.counter, self.oracle, self.journal):
            os.close(fd)


@dataclass
class Verdict:
    """What the journal of a run says. ``stale``: sections that noticed themselves that their lock had been lost."""

    lost_updates: int = 0
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    harm: Counter[str] = field(default_factory=Counter)


def judge(folder: Path, killed: Mapping[int, float], stopped: Iterable[int] = ()) -> Verdict:
    """Read the journal. After a section that lost its lock the counter proves nothing: it may have been set back.

    An overlap is excused if one of the two told that its lock was lost, or could not tell because it was stopped and
    killed. The dead are no overlap either: the kernel closes the sockets of a process before or after its files, so the
    server may know of the end before the flock is free. ``killed``: process -> when.
    """
    verdict = Verdict()
    written: Counter[str] = Counter()
    overlaps = []
    for line in (folder / JOURNAL).read_text().splitlines():
        match line.split():
            case ["w", value, _]:
                written[value] += 1
            case ["o", one, other, at]:
                overlaps.append((one, other, float(at)))
            case ["s", section]:
                verdict.stale.add(section)
            case ["e", kind]:
                verdict.errors[kind] += 1
            case ["f", kind]:
                verdict.faults[kind] += 1
            case ["h", *words]:
                verdict.harm[" ".join(words)] += 1
    silenced = set(killed) & set(stopped)

    def excused(section: str, at: float) -> bool:
        pid = int(section.split(".")[0])
        return section in verdict.stale or pid in silenced or at >= killed.get(pid, math.inf)

    verdict.overlaps = [(one, other) for one, other, at in overlaps if not (excused(one, at) or excused(other, at))]
    if not verdict.stale and not silenced:
        verdict.lost_updates = written.total() - len(written)
    return verdict
