"""One replay: every way in turn, by real processes, on the database of this process."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection

from django_distlock import UnsupportedOperation, advisory_lock

from .copies import SECONDS, SLOT, Copies, CopyError, Task, copies
from .models import Job, Schedule
from .records import Replay, WayResult, problems
from .ways import WAYS, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`ttl` counts where the alias has one; `slots` is how many go by between two incidents."""

    ways: Sequence[Way] = WAYS
    using: str = "leasetable"
    copies: int = 3
    ttl: float = 1.0
    slots: int = 4


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What the alias can do: without a fence a leader that sleeps keeps its office, with its session. ``session``:
    seconds without a word after which the server ends one, where it does not see at once that a process is dead."""

    fence: bool
    ttl: bool
    session: float

    @classmethod
    def of(cls, using: str) -> Engine:
        with advisory_lock(f"scheduler probe {os.getpid()}", using=using) as lease:
            try:
                fence = lease.fence is not None
            except UnsupportedOperation:
                fence = False
            session = settings.DISTLOCK[using].get("OPTIONS", {}).get("session_timeout", 0.0)
            return cls(fence=fence, ttl=lease.valid_until is not None, session=session)


def replay(plan: Plan, tell: Callable[[str], Any] = lambda line: None) -> Replay:
    engine = Engine.of(plan.using)
    ttl = plan.ttl if engine.ttl else None
    results = []
    for way in plan.ways:
        if way.fenced and not engine.fence:
            tell(f"{way.title}: left out, the alias {plan.using!r} gives no fencing tokens.")
            continue
        tell(f"{way.title} ...")
        results.append(one_way(way, plan, engine))
    return Replay(
        engine=connection.vendor,
        engine_name=connection.display_name,
        engine_version=".".join(str(part) for part in connection.get_database_version()),
        using=plan.using,
        copies=plan.copies,
        ttl=ttl,
        ways=results,
        problems=list(problems(results, engine.session if ttl is None else ttl)),
    )


def one_way(way: Way, plan: Plan, engine: Engine) -> WayResult:
    schedule = Schedule.objects.create(name=f"replayed {way.slug}")
    office = f"scheduler:{way.slug}:{schedule.pk}:{os.getpid()}"
    ttl = plan.ttl if engine.ttl else None
    task = Task(schedule.pk, office, plan.using, ttl, way.leads, way.fenced, time.monotonic())
    takeover, late, errors = None, 0, []
    slept = way.leads and engine.fence
    try:
        with copies(plan.copies, task) as crew:
            if way.leads:
                leader, takeover = kill_the_leader(crew, schedule, plan.slots)
                if slept:
                    late = put_the_leader_to_sleep(crew, schedule, plan.slots, leader, fenced=way.fenced)
            pass_slots(crew, schedule, plan.slots)
            crew.stop()
    except CopyError as error:
        errors.append(str(error))
    runs = Counter(Job.objects.filter(schedule=schedule).values_list("slot", flat=True))
    slots = max(runs, default=0)
    schedule.delete()
    return WayResult(
        slug=way.slug,
        title=way.title,
        prevents=way.prevents or (way.leads and not slept),
        slots=slots,
        jobs=runs.total(),
        twice=sum(count > 1 for count in runs.values()),
        missed=slots - len(runs),
        takeover=None if takeover is None else round(takeover, 3),
        slept=slept,
        late=late,
        errors=errors,
    )


def kill_the_leader(crew: Copies, schedule: Schedule, slots: int) -> tuple[int, float]:
    """The next leader, and the seconds that it took until it led."""
    leader, _ = crew.wait_for("leads")
    pass_slots(crew, schedule, slots)
    when = crew.kill(leader)
    leader, _ = crew.wait_for("leads")
    takeover = crew.now - when
    pass_slots(crew, schedule, slots)
    return leader, takeover


def put_the_leader_to_sleep(crew: Copies, schedule: Schedule, slots: int, leader: int, *, fenced: bool) -> int:
    """Until another one has led for a while; how many of its late writes were refused."""
    crew.put_to_sleep(leader)
    try:
        crew.wait_for("leads")
        pass_slots(crew, schedule, slots)
    finally:
        crew.wake(leader)
    crew.wait_for("woke", leader)
    if not fenced:
        return 0
    crew.wait_for("late", leader)
    return 1


def pass_slots(crew: Copies, schedule: Schedule, count: int) -> None:
    """Wait until so many more were run."""
    wanted, deadline = Job.objects.filter(schedule=schedule).count() + count, time.monotonic() + SECONDS
    while Job.objects.filter(schedule=schedule).count() < wanted:
        crew.check()
        if time.monotonic() > deadline:
            raise CopyError(f"Nothing was run for {SECONDS} s.")
        time.sleep(SLOT / 5)
