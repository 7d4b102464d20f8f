"""Copies of one scheduler: the leader is killed, the next one is put to sleep in the middle of a job."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection, transaction

from django_distlock import Leader, LockLost, UnsupportedOperation, advisory_lock
from testproject.replay import ReplayError, scene
from testproject.replay.processes import SECONDS, Team
from testproject.replay.scene import Bars, Column, Figures, Option, Scene, Stage

from .models import Job, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

SLOT = 0.1  # seconds between two jobs
WORK = 0.01  # seconds that a job takes
SLOTS = 4  # that go by between two incidents
ALLOWED = 1.0  # seconds after the end of its lock within which another copy must lead


@dataclass(frozen=True, slots=True)
class Way(scene.Way):
    """`prevents`: does it promise that no slot is run twice? `leads`: does one of the copies lead, so that it can be
    killed and another one put to sleep? `fenced`: does a write carry the fencing token of the term?"""

    leads: bool = True
    fenced: bool = False


NONE = Way(
    "none",
    "No leader",
    "",
    "Every copy looks what is due, runs it and writes down that it was run.",
    prevents=False,
    leads=False,
)
LEADER = Way(
    "leader",
    "Leader alone",
    'Leader("scheduler", on_elected=run_what_is_due)',
    "Only the leader runs what is due. It is killed, and another copy goes on. That one falls asleep in the middle of "
    "a job, the third one leads meanwhile, and then it wakes up, ends the job, and sets the schedule back.",
    prevents=False,
)
FENCED = Way(
    "fenced",
    "Leader and fence",
    "Schedule.objects.fenced(term.fence).filter(pk=pk).update(last=slot)",
    "The same kill and the same sleep. The schedule has been written with a later token, and the database refuses the "
    "one who slept.",
    prevents=True,
    fenced=True,
)


def run_next(pk: int, due: int, work: Callable[[], None], fence: int | None) -> None:
    """Run the slot after the last one, if it is due. With a fence: LockLost if another leader has written since, and
    then nothing of it is done."""
    slot = Schedule.objects.get(pk=pk).last + 1
    if slot > due:
        return
    work()
    with transaction.atomic():
        schedules = Schedule.objects if fence is None else Schedule.objects.fenced(fence)
        schedules.filter(pk=pk).update(last=slot)
        Job.objects.create(schedule_id=pk, slot=slot, process=os.getpid())


class Copy:
    """A copy of the scheduler, in its own process."""

    def __init__(self, pk: int, began: float, fenced: bool) -> None:
        self.pk, self.began, self.fenced = pk, began, fenced
        self.sleepy = False
        self.late, self.errors = 0, []

    def lead(self, term: Any) -> None:
        self.run_until(term.wait, term)

    def run_until(self, wait: Callable[[float], bool], term: Any = None) -> None:
        """Look what is due, again and again, for as long as `wait(seconds)` says so."""
        try:
            while wait(SLOT / 5):
                due = int((time.monotonic() - self.began) / SLOT)
                run_next(self.pk, due, lambda: self.work(term), term.fence if self.fenced else None)
        except LockLost:
            self.late += 1
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def work(self, term: Any) -> None:
        time.sleep(WORK)
        if self.sleepy:
            self.sleepy = False
            # Who is stopped in the middle of a renewal may hold the write lock of an SQLite file as long as it sleeps.
            before = term.valid_until
            while before is not None and term.valid_until == before and term.leading:
                time.sleep(0.001)
            # to this very thread: another one might take it later, and this one would write before it sleeps
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stand(
    pipe: Connection, pk: int, name: str, using: str, ttl: float | None, leads: bool, fenced: bool, began: float
) -> tuple[int, list[str]]:
    """What one process does until it is told to stop; how many writes were refused as late, and the errors.

    `name` is the office, `ttl` None where the alias has none, `began` when slot 0 was. SIGUSR1 puts it to sleep.
    """
    copy = Copy(pk, began, fenced)
    signal.signal(signal.SIGUSR1, lambda *args: setattr(copy, "sleepy", True))
    if leads:
        lease = {} if ttl is None else {"ttl": ttl}
        with Leader(name, using=using, on_elected=copy.lead, **lease):
            pipe.recv()
    else:
        copy.run_until(lambda seconds: not pipe.poll(seconds))
        pipe.recv()
    return copy.late, copy.errors


class Scheduler(Scene):
    name = "scheduler"
    help = "Several copies of a scheduler: the leader is killed, the next one sleeps beyond the end of its lease."
    ways = (NONE, LEADER, FENCED)
    options = (
        Option("using", "leasetable", "the lock alias"),
        Option("copies", 3, "processes, of which one is killed and one sleeps", least=3),
        Option("ttl", 1.0, "of the leader's lease, where the alias has leases", least=0.1),
    )
    columns = (
        Column("Slots", "slots"),
        Column("Jobs", "jobs"),
        Column("Run twice", "twice", alarm=True),
        Column("Missed", "missed", alarm=True),
        Column("Takeover, s", lambda way: "-" if way["takeover"] is None else f"{way['takeover']:.2f}"),
        Column("Late writes refused", "late"),
    )
    bars = (
        Bars(
            "Jobs that were run",
            lambda way: way["jobs"],
            lambda way: f"{way['jobs']} for {way['slots']}" + (f", {way['twice']} twice" if way["twice"] else ""),
            alarm=lambda way: way["twice"],
        ),
        Bars(
            "Seconds from the kill of the leader to the next job",
            lambda way: way["takeover"],
            lambda way: f"{way['takeover']:.2f}",
        ),
    )

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        engine = Engine.of(given["using"])
        facts = {"using": given["using"], "copies": given["copies"], "ttl": given["ttl"] if engine.ttl else None}

        def leaves_out(way: Way) -> str:
            return "" if engine.fence or not way.fenced else f"{given['using']!r} gives no fencing tokens"

        yield Stage(lambda way: play(way, engine, **facts), facts, leaves_out=leaves_out)

    def shown(self, way: Figures) -> bool:
        return way["twice"] > 0

    def problems(self, way: Figures) -> Iterator[str]:
        yield from way["errors"]
        if way["missed"]:
            yield f"{way['missed']} slots were not run."
        if way["takeover"] is not None and way["takeover"] > way["outlives"] + ALLOWED:
            yield f"nothing was run for {way['takeover']:.1f} s after the leader was killed."
        if way["prevents"] and way["twice"]:
            yield f"{way['twice']} slots were run twice."
        if way["prevents"] and way["slept"] and not way["late"]:
            yield "the leader that slept was not refused."

    def story(self, way: Figures) -> str:
        killed = (
            "" if way["takeover"] is None else f"; another one led {way['takeover']:.2f} s after the leader was killed"
        )
        late = f"; {way['late']} late write refused" if way["late"] else ""
        return f"{way['title']}: {way['slots']} slots, {way['twice']} of them run twice{killed}{late}."


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


def play(way: Way, engine: Engine, *, using: str, copies: int, ttl: float | None) -> Figures:
    schedule = Schedule.objects.create(name=f"replayed {way.slug}")
    office = f"scheduler:{way.slug}:{schedule.pk}:{os.getpid()}"
    takeover, slept = None, way.leads and engine.fence
    with Team(f"{__name__}:stand", copies) as team:
        task = (schedule.pk, office, using, ttl, way.leads, way.fenced, time.monotonic())
        for number in range(copies):
            team.send(number, *task)
        pass_slots(schedule)
        if way.leads:
            takeover = kill_the_leader(team, schedule)
            pass_slots(schedule)
            if slept:
                put_the_leader_to_sleep(team, schedule)
            pass_slots(schedule)
        left = [number for number, process in enumerate(team.processes) if process.is_alive()]
        for number in left:
            team.send(number, "stop")
        outcomes = [team.receive(number) for number in left]
    runs = Counter(Job.objects.filter(schedule=schedule).values_list("slot", flat=True))
    schedule.delete()
    return {
        "prevents": way.prevents or (way.leads and not slept),
        "slots": max(runs),
        "jobs": runs.total(),
        "twice": sum(count > 1 for count in runs.values()),
        "missed": max(runs) - len(runs),
        "takeover": takeover,
        "outlives": engine.session if ttl is None else ttl,
        "slept": slept,
        "late": sum(late for late, _ in outcomes),
        "errors": sorted({error for _, errors in outcomes for error in errors}),
    }


def kill_the_leader(team: Team, schedule: Schedule) -> float:
    """Seconds until another one has run a job."""
    leader = leader_of(team, schedule)
    when = time.monotonic()
    team.processes[leader].kill()
    team.processes[leader].join()
    wait_for(lambda: leader_of(team, schedule) != leader)
    return round(time.monotonic() - when, 3)


def put_the_leader_to_sleep(team: Team, schedule: Schedule) -> None:
    """Until another one has led for a while."""
    leader = leader_of(team, schedule)
    os.kill(team.processes[leader].pid, signal.SIGUSR1)
    team.wait_until_stopped(leader)
    try:
        wait_for(lambda: leader_of(team, schedule) != leader)
        pass_slots(schedule)
    finally:
        os.kill(team.processes[leader].pid, signal.SIGCONT)


def leader_of(team: Team, schedule: Schedule) -> int:
    """Who ran the latest job."""
    pid = Job.objects.filter(schedule=schedule).latest("pk").process
    return [process.pid for process in team.processes].index(pid)


def pass_slots(schedule: Schedule) -> None:
    """Wait until some more were run."""
    jobs = Job.objects.filter(schedule=schedule)
    wanted = jobs.count() + SLOTS
    wait_for(lambda: jobs.count() >= wanted)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ReplayError(f"Nothing was run for {SECONDS} s.")
        time.sleep(SLOT / 10)
