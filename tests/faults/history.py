"""W3: a history of who held what and when on the monotonic clock, which all processes of a machine share, and what it
proves.

    journal = Journal(path)                                 # in each process; all append to one file
    with journal.hold(advisory_lock(name)) as lease: ...    # or line by line

    History.read(path, killed={pid: when}).check()          # [] if no two held at once and every fence rose

What is recorded is the inner bound of each holding: it begins when the holder had its answer and ends before its
release was sent, at the end of its validity, when it was told of a loss, or when it was killed. So two holdings that
overlap did so in truth. A line is one append, so one that is killed leaves what it saw.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock import LockLost, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from django_distlock import Lease, Lock

_numbers = itertools.count(1)


class Journal:
    """The pen of one process; any of its threads may write."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def close(self) -> None:
        os.close(self._file)

    def note(self, event: str, token: str, **facts: Any) -> None:
        """``granted``; ``seen``, renewed: valid for longer than was noted before; ``releasing``, about to release: from
        now on somebody else may hold it; ``released``, which was answered; ``lost``, told of the loss."""
        line = json.dumps({"event": event, "token": token, "at": time.monotonic(), **facts})
        os.write(self._file, f"{line}\n".encode())

    def granted(self, lock: str, invoke: float, *, valid_until: float | None = None, fence: int | None = None) -> str:
        """The lock was asked for at ``invoke`` and is held from now on. Returns the token of this holding."""
        token = f"{os.getpid()}.{next(_numbers)}"
        facts = {"invoke": invoke, "valid_until": valid_until, "fence": fence}
        self.note("granted", token, lock=lock, pid=os.getpid(), **facts)
        return token

    def took(self, lease: Lease, invoke: float) -> str:
        """:meth:`granted` for a Lease, whose loss is noted when it is told."""
        try:
            fence = lease.fence
        except UnsupportedOperation:
            fence = None
        name = f"{lease.using}/{lease.name}"
        token = self.granted(name, invoke, valid_until=lease.valid_until, fence=fence)
        lease.on_lost(lambda _: self.note("lost", token))
        return token

    @contextlib.contextmanager
    def hold(self, lock: Lock) -> Iterator[Lease]:
        """Acquire, note, and release at the end of the block; a loss that the release finds is noted, not raised."""
        invoke = time.monotonic()
        lease = lock.acquire()
        token = self.took(lease, invoke)
        try:
            yield lease
        finally:
            if not lease.lost:
                self.note("seen", token, valid_until=lease.valid_until)
            self.note("releasing", token)
            with contextlib.suppress(LockLost):
                lease.release()
                self.note("released", token)


@dataclass
class Hold:
    """One holding, as its holder saw it. ``end`` is when it stopped to rely on the lock, ``why`` what ended it."""

    lock: str
    token: str
    pid: int
    invoke: float
    acquired: float
    valid_until: float | None
    fence: int | None
    end: float = math.inf
    why: str = "the end of the history"
    release: float | None = None
    released: float | None = None
    lost: float | None = None

    def ended(self, at: float | None, why: str) -> None:
        if at is not None and at < self.end:
            self.end, self.why = at, why


class Fault(NamedTuple):
    """What must not happen. ``kind``: "overlap" or "fence"; ``seconds``: how long the overlap was."""

    kind: str
    one: Hold
    other: Hold
    seconds: float = 0.0


@dataclass
class History:
    """All holdings, in the order in which they began."""

    holds: list[Hold] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path, killed: Mapping[int, float] | None = None) -> History:
        """Read a journal. ``killed``: process -> monotonic time before its SIGKILL was sent."""
        holds: dict[str, Hold] = {}
        for line in Path(path).read_text().splitlines():
            note = json.loads(line)
            event, token, at = note.pop("event"), note.pop("token"), note.pop("at")
            if event == "granted":
                holds[token] = Hold(token=token, acquired=at, **note)
                continue
            hold = holds[token]
            if event == "seen":
                hold.valid_until = note["valid_until"]
            else:
                name = {"releasing": "release"}.get(event, event)
                if getattr(hold, name) is None:
                    setattr(hold, name, at)
        for hold in holds.values():
            hold.ended(hold.release, "release" if hold.lost is None else "loss")  # its release may have found out
            hold.ended(hold.lost, "loss")
            hold.ended(hold.valid_until, "validity")
            hold.ended((killed or {}).get(hold.pid), "SIGKILL")
        return cls(sorted(holds.values(), key=lambda hold: hold.acquired))

    def check(self, *, told_within: float = 0.0) -> list[Fault]:
        """Everything that is wrong. ``told_within``: seconds for which one that was told of its loss may have
        overlapped with the next one (R18: 7 for database sessions)."""
        faults: list[Fault] = []
        for lock in sorted({hold.lock for hold in self.holds}):
            # who noted its grant after the end of its validity never relied on it
            holds = [hold for hold in self.holds if hold.lock == lock and hold.end > hold.acquired]
            faults += overlaps(holds, told_within)
            faults += sinking_fences(holds)
        return faults


def overlaps(holds: Iterable[Hold], told_within: float) -> Iterator[Fault]:
    """Holdings that began while others were relied on. ``holds`` by their beginning."""
    current: list[tuple[float, int, Hold]] = []
    for number, new in enumerate(holds):
        while current and current[0][0] <= new.acquired:
            heapq.heappop(current)
        for _, _, old in current:
            if not _excused(old, new, told_within):
                yield Fault("overlap", old, new, min(old.end, new.end) - new.acquired)
        heapq.heappush(current, (new.end, number, new))


def _excused(old: Hold, new: Hold, told_within: float) -> bool:
    """One of the two was told in time. It may be the later one: stopped between its grant and its note."""
    return any(
        one.why == "loss" and one.end - new.acquired <= told_within for one in (old, new) if one.end > new.acquired
    )


def sinking_fences(holds: Iterable[Hold]) -> Iterator[Fault]:
    """Fencing tokens that are not above that of an earlier holder: the engine grants the later one only after the end
    of the earlier one, so ``holds`` are by their beginning."""
    last: Hold | None = None
    for hold in holds:
        if hold.fence is None:
            continue
        if last is not None and last.fence is not None and hold.fence <= last.fence:
            yield Fault("fence", last, hold)
        else:
            last = hold
