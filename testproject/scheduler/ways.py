"""The ways to run one scheduler in three copies, side by side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """`prevents`: does it promise that no slot is run twice? `leads`: does one of the copies lead, so that it can be
    killed and another one put to sleep? `fenced`: does a write carry the fencing token of the term?"""

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool
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
WAYS = (NONE, LEADER, FENCED)
