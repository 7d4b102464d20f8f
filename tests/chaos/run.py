"""One engine: its crew at work under faults, and what the ledger says of it."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_distlock import DistlockError, advisory_lock, held_locks
from tests.chaos.faults import LONGEST_STOP, TOLD_WITHIN, Havoc, child_behind
from tests.chaos.oracle import COUNTER, JOURNAL, ORACLE, judge
from tests.chaos.worker import HISTORY, PATIENCE, ROLES, TTL, Order
from tests.faults.history import Fault, History, Hold
from tests.faults.server import SESSION_LOCKS

if TYPE_CHECKING:
    import random
    from collections.abc import Collection
    from pathlib import Path

    from tests.faults.proxy import Proxy
    from tests.support.processes import Child

LEAK_WITHIN = TTL + 2
# A worker that hangs for longer at its end is a leak itself.
END_WITHIN = 2 * PATIENCE + 30
MOST = 5  # complaints that are shown of an engine


@dataclass
class Result:
    """What happened to one engine. ``stale``: sections that noticed by themselves that their lock was lost."""

    using: str
    seconds: float
    holds: list[Hold] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    overlaps: int = 0
    lost_updates: int = 0
    stale: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        longest_wait = max((hold.acquired - hold.invoke for hold in self.holds), default=math.nan)
        lines = [
            f"{self.using}: {self.seconds:.0f} s, {len(self.holds):,} holds, {len(self.complaints)} complaints",
            f"  faults: {listed(self.faults)}; errors told: {listed(self.errors)}",
            f"  {sum(hold.lost is not None for hold in self.holds)} losses told; longest wait {longest_wait:.1f} s",
        ]
        return "\n".join(lines + [f"  {complaint}" for complaint in self.complaints[:MOST]])


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def run(
    using: str, seconds: float, rng: random.Random, doors: dict[str, Proxy], folder: Path, *, kind: str = "sound",
    only: Collection[str] | None = None,
) -> Result:  # fmt: skip
    """Work under one lock for ``seconds``. ``kind``: a lock that is broken on purpose. ``folder`` keeps the ledger.
    ``only``: the kinds of faults, if not all."""
    name, proxied = f"chaos {using} {time.monotonic_ns()}", folder.parent / "state.json"
    for file in (COUNTER, ORACLE, JOURNAL, HISTORY):
        (folder / file).write_text("")
    workers = [child_behind(proxied) for _ in ROLES]
    for worker in workers:
        assert worker.hear() == "ready"
    result = Result(using, seconds)
    until = time.monotonic() + seconds
    roles = dict(zip([worker.pid for worker in workers], ROLES, strict=True))

    def put_to_work(worker: Child, role: str) -> None:
        worker.say([*Order(using, name, str(folder), kind, role, rng.getrandbits(32), until)])

    def replace(pid: int) -> Child:
        """Hire one for the role of another one that was killed."""
        worker = child_behind(proxied)
        assert worker.hear() == "ready"
        roles[worker.pid] = roles[pid]
        put_to_work(worker, roles[pid])
        return worker

    for worker in workers:
        put_to_work(worker, roles[worker.pid])
    havoc = Havoc(using, name, folder, doors, rng, replace, workers)
    if only is None or only:
        havoc.run(until, only)
    for door in havoc.doors.values():
        door.heal()
    left = [each for worker in workers for each in end_of(worker, until)] + leaks(using, name)
    result.complaints += [f"leak: {each}" for each in left]
    for worker in workers:
        with contextlib.suppress(BrokenPipeError):
            worker.say(None)
        worker.__exit__(None, None, None)
    read(result, folder, havoc)
    return result


def end_of(worker: Child, until: float) -> list[str]:
    """What a worker says is left in its process."""
    try:
        said: list[str] = worker.hear(max(0.0, until - time.monotonic()) + END_WITHIN)
    except AssertionError as error:
        return [f"a worker does not end: {error}"]
    return said


def leaks(using: str, name: str) -> list[str]:
    """The lock as a process sees it that had no part: free, and not in the list of what is held."""
    from django.db import connections

    connections.close_all()  # the servers may have been started again
    deadline = time.monotonic() + LEAK_WITHIN
    while True:
        try:
            with advisory_lock(name, using=using, timeout=LEAK_WITHIN):
                break
        except DistlockError as error:
            if time.monotonic() > deadline:
                return [f"{type(error).__name__} after {LEAK_WITHIN} s: {error}"]
    deadline = time.monotonic() + LEAK_WITHIN
    while left := [str(lock) for report in held_locks(using=using) for lock in report.locks if lock.name == name]:
        if time.monotonic() > deadline:  # until then it may be a vote of Redlock, which ends with its TTL
            break
        time.sleep(0.1)
    return left


def read(result: Result, folder: Path, havoc: Havoc) -> None:
    """Fill in what the ledger says: the oracle's word and the checker's."""
    told_within = TOLD_WITHIN + LONGEST_STOP if result.using in SESSION_LOCKS else 0.0
    verdict = judge(folder, havoc.killed, havoc.ever_stopped)
    history = History.read(folder / HISTORY, havoc.killed)
    faults = history.check(told_within=told_within)
    result.holds, result.errors, result.faults = history.holds, verdict.errors, havoc.done + verdict.faults
    result.lost_updates, result.stale = verdict.lost_updates, len(verdict.stale)
    result.overlaps = len(verdict.overlaps) + sum(fault.kind == "overlap" for fault in faults)
    result.complaints += [
        *(f"overlap: {one} and {other} had the oracle's flock" for one, other in verdict.overlaps),
        *(f"{fault.kind}: {described(fault)}" for fault in faults),
        *(f"told too late: {one}" for one in untold(history.holds, havoc.killed, told_within)),
        *(f"harm: {one}, {count} times" for one, count in verdict.harm.items()),
        *([] if history.holds else ["no holds: nothing was shown"]),
    ]


def described(fault: Fault) -> str:
    one, other = fault.one, fault.other
    what = f"{fault.seconds:.3f} s" if fault.kind == "overlap" else f"{other.fence} after {one.fence}"
    return f"{what}: {one.token} (until {one.end:.3f}, {one.why}) and {other.token} (from {other.acquired:.3f})"


def untold(holds: list[Hold], killed: dict[int, float], told_within: float) -> list[str]:
    """Holders that were in their block when the next one got in, and that did not learn of it in time: at the end of
    their block, and for sessions within ``told_within``. ``holds`` by their beginning.

    The next one may be the one that has lost the lock, and learnt of it in time: its session ended before it could note
    its grant.
    """
    found = []
    for hold, following in itertools.pairwise(holds):
        succeeded = hold.release is not None and following.acquired < hold.release and hold.pid not in killed
        late = hold.lost is None or (told_within and hold.lost - following.acquired > told_within)
        instead = following.lost is not None and following.lost - following.acquired <= told_within
        if succeeded and late and not instead and following.end > following.acquired:
            found.append(f"{hold.token} was not told that {following.token} had its lock")
    return found
