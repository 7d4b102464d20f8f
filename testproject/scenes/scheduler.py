"""Copies of one scheduler: the leader is killed, the next one is put to sleep in the middle of a job."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_distlock import Leader, LockLost
from testproject.replay.processes import SECONDS, Member, Team, wait_for
from testproject.replay.scene import Column, Figures, Option, Scene, Way, way

from .models import Job, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

SLOT = 0.1  # seconds between two jobs
WORK = 0.01  # seconds that a job takes
SLOTS = 4  # that go by between two incidents
IDLE = f"Nothing was run for {SECONDS} s."
ALLOWED = 1.0  # seconds after the end of its lease within which another copy must lead


@way("No leader", prevents=False)
def none(term: Any) -> Any:
    """Every copy looks what is due, runs it and writes down that it was run."""
    return Schedule.objects


@way("Leader alone", 'Leader("scheduler", on_elected=run_what_is_due)', prevents=False, pauses=True)
def leader(term: Any) -> Any:
    """Only the leader runs what is due. It is killed, and another copy goes on. That one falls asleep in the middle of
    a job, the third one leads meanwhile, and then it wakes up, ends the job, and sets the schedule back."""
    return Schedule.objects


@way("Leader and fence", "Schedule.objects.fenced(term.fence).filter(pk=pk).update(last=slot)", pauses=True)
def fenced(term: Any) -> Any:
    """The same kill and the same sleep. The schedule has been written with a later token, and the database refuses the
    one who slept."""
    return Schedule.objects.fenced(term.fence)


class Copy:
    """A copy of the scheduler, in its own process. SIGUSR1 puts it to sleep in the middle of its next job."""

    def __init__(self, way: Way, pk: int, began: float) -> None:
        self.way, self.pk, self.began = way, pk, began
        self.sleepy, self.late, self.errors = False, 0, []
        signal.signal(signal.SIGUSR1, lambda *args: setattr(self, "sleepy", True))

    def run_while(self, wait: Callable[[float], bool], term: Any = None) -> None:
        """Run what is due, again and again, for as long as `wait(seconds)` says so."""
        try:
            while wait(SLOT / 5):
                slot = Schedule.objects.get(pk=self.pk).last + 1
                if slot <= (time.monotonic() - self.began) / SLOT:
                    self.work(term)
                    with transaction.atomic():  # with a fence: LockLost if another leader has written since
                        self.way.run(term).filter(pk=self.pk).update(last=slot)
                        Job.objects.create(schedule_id=self.pk, slot=slot, process=os.getpid())
        except LockLost:
            self.late += 1
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def work(self, term: Any) -> None:
        time.sleep(WORK)
        if self.sleepy:
            self.sleepy = False
            # Who is stopped in the middle of a renewal may hold the write lock of an SQLite file as long as it sleeps.
            before = term.valid_until
            while term.valid_until == before and term.leading:
                time.sleep(0.001)
            # to this very thread: another one might take it later, and this one would write before it sleeps
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stand(pipe: Connection, way: Way, pk: int, began: float, office: dict[str, Any]) -> tuple[int, list[str]]:
    """What one process does until it is told to stop; how many writes were refused as late, and the errors."""
    copy = Copy(way, pk, began)
    if way is none:
        copy.run_while(lambda seconds: not pipe.poll(seconds))
    else:
        with Leader(**office, on_elected=lambda term: copy.run_while(term.wait, term)):
            pipe.recv()
    return copy.late, copy.errors


class Scheduler(Scene):
    name = "scheduler"
    help = "Several copies of a scheduler: the leader is killed, the next one sleeps beyond the end of its lease."
    ways = (none, leader, fenced)
    options = (
        Option("copies", 3, "processes, of which one is killed and one sleeps"),
        Option("ttl", 1.0, "of the leader's lease, in seconds"),
    )
    columns = (
        Column("Slots", "slots"),
        Column("Jobs", "jobs"),
        Column("Run twice", "twice", alarm=True),
        Column("Missed", "missed", alarm=True),
        Column("Takeover, s", "takeover", pattern="{:.2f}"),
        Column("Late writes refused", "late"),
    )
    fault = ("twice",)
    plots = (("jobs", "Jobs that were run"), ("takeover", "Seconds from the kill of the leader to the next job"))

    story = "{slots} slots, {twice} of them run twice; late writes refused: {late}"

    def act(self, way: Way, copies: int, ttl: float) -> list[Figures]:
        return [play(way, copies, ttl)]

    def more_problems(self, row: Figures, prevents: bool) -> Iterator[str]:
        if row["missed"] and not prevents:
            yield f"{row['missed']} slots were not run."
        if row["takeover"] is not None and row["takeover"] > row["ttl"] + ALLOWED:
            yield f"nothing was run for {row['takeover']:.1f} s after the leader was killed."
        if prevents and not row["late"]:
            yield "the leader that slept was not refused."


def play(way: Way, copies: int, ttl: float) -> Figures:
    schedule = Schedule.objects.create(name=f"replayed {way.slug}")
    office = {"name": f"scheduler:{way.slug}:{schedule.pk}:{os.getpid()}", "using": "leasetable", "ttl": ttl}
    takeover = None
    with Team() as team:
        began = time.monotonic()
        for _ in range(copies):
            team.start(stand, way, schedule.pk, began, office)
        pass_slots(schedule)
        if way.pauses:
            takeover = kill_the_leader(team, schedule)
            pass_slots(schedule)
            put_the_leader_to_sleep(team, schedule)
            pass_slots(schedule)
        left = [member for member in team if member.process.is_alive()]
        for member in left:
            member.pipe.send("stop")
        outcomes = [member.result() for member in left]
    runs = Counter(schedule.jobs.values_list("slot", flat=True))
    schedule.delete()
    return {
        "slots": max(runs),
        "jobs": runs.total(),
        "twice": sum(count > 1 for count in runs.values()),
        "missed": max(runs) - len(runs),
        "takeover": takeover,
        "ttl": ttl,
        "late": sum(late for late, _ in outcomes),
        "errors": sorted({error for _, errors in outcomes for error in errors}),
    }


def kill_the_leader(team: Team, schedule: Schedule) -> float:
    """Seconds until another one has run a job."""
    killed, when = leader_of(team, schedule), time.monotonic()
    killed.process.kill()
    killed.process.join()
    wait_for(lambda: leader_of(team, schedule) is not killed, IDLE)
    return round(time.monotonic() - when, 3)


def put_the_leader_to_sleep(team: Team, schedule: Schedule) -> None:
    """Until another one has led for a while."""
    sleeper = leader_of(team, schedule)
    os.kill(sleeper.pid, signal.SIGUSR1)
    with sleeper.asleep():
        wait_for(lambda: leader_of(team, schedule) is not sleeper, IDLE)
        pass_slots(schedule)


def leader_of(team: Team, schedule: Schedule) -> Member:
    """Who ran the latest job."""
    pid = schedule.jobs.latest("pk").process
    return next(member for member in team if member.pid == pid)


def pass_slots(schedule: Schedule) -> None:
    """Wait until some more were run."""
    wanted = schedule.jobs.count() + SLOTS
    wait_for(lambda: schedule.jobs.count() >= wanted, IDLE)
