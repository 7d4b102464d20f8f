"""What the answers of N independent nodes amount to. Pure: values in, a verdict out; no clock and no sockets.

The rules are those of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/: a lock is held by whom a
majority has granted it in time.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING

from django_distlock.records import drift

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Answer(Enum):
    """What one node has said so far."""

    PENDING = auto()  # asked, and its time is not over
    SLOW = auto()  # asked, but it owes us answers to older questions: not waited for if the others can decide
    GRANTED = auto()
    REFUSED = auto()  # somebody else has it there; it is not ours there
    FAILED = auto()  # cannot be reached, or answered with an error


class Verdict(Enum):
    """What to do."""

    WAIT = auto()
    GRANTED = auto()
    REFUSED = auto()
    UNAVAILABLE = auto()  # the nodes that can be reached are too few to decide anything


def majority(nodes: int) -> int:
    """How many of ``nodes`` must agree: any two majorities have a node in common."""
    return nodes // 2 + 1


def validity(ttl: float, elapsed: float) -> float:
    """Seconds for which a lock may be relied on that was asked for ``elapsed`` seconds ago. Not above zero: never."""
    return ttl - elapsed - drift(ttl)


def decide(answers: Sequence[Answer], *, elapsed: float, ttl: float, patience: float) -> Verdict:
    """Is the lock ours? ``patience``: seconds that a node has for its answer.

    Whatever is not GRANTED has to be taken back on every node that was asked.
    """
    count = Counter(answers)
    needed = majority(len(answers))
    in_time = validity(ttl, elapsed) > 0
    if count[Answer.GRANTED] >= needed and in_time:
        return Verdict.GRANTED
    waited = elapsed >= patience
    pending = 0 if waited else count[Answer.PENDING]
    slow = 0 if waited else count[Answer.SLOW]
    if in_time:
        if count[Answer.GRANTED] + pending >= needed:
            return Verdict.WAIT
        # a refusal says that somebody else has a part of it: better luck next time, rather than waiting for the slow
        if not count[Answer.REFUSED] and count[Answer.GRANTED] + pending + slow >= needed:
            return Verdict.WAIT
    working = count[Answer.GRANTED] + count[Answer.REFUSED] + pending
    return Verdict.REFUSED if working >= needed else Verdict.UNAVAILABLE


def confirm(answers: Sequence[Answer], *, elapsed: float, patience: float) -> Verdict:
    """Do we still have it? For extensions, releases and looks.

    GRANTED if a majority says so, REFUSED if so many deny it that a majority may be somebody else's, UNAVAILABLE if
    neither can be known.
    """
    count = Counter(answers)
    needed = majority(len(answers))
    if count[Answer.GRANTED] >= needed:
        return Verdict.GRANTED
    if count[Answer.REFUSED] > len(answers) - needed:
        return Verdict.REFUSED
    if elapsed < patience and (count[Answer.PENDING] or count[Answer.SLOW]):
        return Verdict.WAIT
    return Verdict.UNAVAILABLE


def heard(answers: Iterable[Answer], *, elapsed: float, patience: float) -> Verdict:
    """Has everybody spoken who will soon? GRANTED if anybody did; for listings."""
    count = Counter(answers)
    if count[Answer.PENDING] and elapsed < patience:
        return Verdict.WAIT
    return Verdict.GRANTED if count[Answer.GRANTED] else Verdict.UNAVAILABLE
