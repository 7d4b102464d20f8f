"""What the answers of several nodes mean together. Values in, values out: no clock and no sockets.

The rules are those of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/: a lock belongs to the
caller to which a majority has granted it in time.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from django_distlock.records import drift

if TYPE_CHECKING:
    from collections.abc import Sequence


class Answer(Enum):
    """What one node has said so far."""

    PENDING = auto()  # its time is not over
    YES = auto()
    NO = auto()  # another caller has it there; it is not ours there
    FAILED = auto()  # it cannot be reached, was late, or answered with an error


class Verdict(Enum):
    """What to do."""

    WAIT = auto()
    GRANTED = auto()
    REFUSED = auto()
    UNAVAILABLE = auto()  # the nodes that answer are too few to decide anything


def majority(nodes: int) -> int:
    """How many of ``nodes`` must agree: any two majorities have a node in common."""
    return nodes // 2 + 1


def validity(ttl: float, elapsed: float) -> float:
    """Seconds for which a lock may be relied on that was asked for ``elapsed`` seconds ago. Not above zero: never."""
    return ttl - elapsed - drift(ttl)


def decide(answers: Sequence[Answer], *, in_time: bool = True) -> Verdict:
    """Is the lock ours? ``in_time``: is it still worth having?

    What is not granted has to be taken back on every node that was asked.
    """
    needed = majority(len(answers))
    yes, no, pending = (answers.count(answer) for answer in (Answer.YES, Answer.NO, Answer.PENDING))
    if yes >= needed and in_time:
        return Verdict.GRANTED
    if in_time and yes + pending >= needed:
        return Verdict.WAIT
    return Verdict.REFUSED if yes + no + pending >= needed else Verdict.UNAVAILABLE


def confirm(answers: Sequence[Answer]) -> Verdict:
    """Do we still have it? REFUSED if so many deny it that a majority may be another caller's."""
    needed = majority(len(answers))
    if answers.count(Answer.YES) >= needed:
        return Verdict.GRANTED
    if answers.count(Answer.NO) > len(answers) - needed:
        return Verdict.REFUSED
    return Verdict.WAIT if Answer.PENDING in answers else Verdict.UNAVAILABLE
