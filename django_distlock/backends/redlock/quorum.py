"""What the answers of N independent nodes amount to. Pure: values in, a verdict out; no clock and no sockets.

The rules are those of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/: a lock is held by whom a
majority has granted it in time.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from django_distlock.records import drift

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeAnswer(Enum):
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


def decide(answers: Sequence[NodeAnswer], *, elapsed: float, ttl: float, patience: float) -> Verdict:
    """Is the lock ours? ``patience``: seconds that a node has for its answer.

    Whatever is not GRANTED has to be taken back on every node that was asked.
    """
    needed = majority(len(answers))
    granted = answers.count(NodeAnswer.GRANTED)
    in_time = validity(ttl, elapsed) > 0
    if granted >= needed and in_time:
        return Verdict.GRANTED
    waited = elapsed >= patience
    refused = answers.count(NodeAnswer.REFUSED)
    pending = 0 if waited else answers.count(NodeAnswer.PENDING)
    slow = 0 if waited else answers.count(NodeAnswer.SLOW)
    if in_time:
        if granted + pending >= needed:
            return Verdict.WAIT
        # after a refusal another holder has a part of it: try again later, rather than wait for slow nodes
        if not refused and granted + pending + slow >= needed:
            return Verdict.WAIT
    return Verdict.REFUSED if granted + refused + pending >= needed else Verdict.UNAVAILABLE


def confirm(answers: Sequence[NodeAnswer], *, elapsed: float, patience: float) -> Verdict:
    """Do we still have it? For extensions, releases and looks.

    GRANTED if a majority says so, REFUSED if so many deny it that a majority may be somebody else's, UNAVAILABLE if
    neither can be known.
    """
    needed = majority(len(answers))
    if answers.count(NodeAnswer.GRANTED) >= needed:
        return Verdict.GRANTED
    if answers.count(NodeAnswer.REFUSED) > len(answers) - needed:
        return Verdict.REFUSED
    if elapsed < patience and (NodeAnswer.PENDING in answers or NodeAnswer.SLOW in answers):
        return Verdict.WAIT
    return Verdict.UNAVAILABLE


def heard(answers: Sequence[NodeAnswer], *, elapsed: float, patience: float) -> Verdict:
    """Wait for every node that answers soon. GRANTED if any did; for listings."""
    if NodeAnswer.PENDING in answers and elapsed < patience:
        return Verdict.WAIT
    return Verdict.GRANTED if NodeAnswer.GRANTED in answers else Verdict.UNAVAILABLE
