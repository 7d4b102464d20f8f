"""The locks on all nodes together, and taking one away on all of them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.redis.introspection import facts_of, moment_of, who_of
from django_distlock.backends.redis.protocol import ReplyError, pack
from django_distlock.concurrency.clock import monotonic
from django_distlock.records import LockInfo

from .inquiry import Outcome, Question
from .quorum import Answer, Verdict, heard, majority
from .scripts import BREAK, DESCRIBE, PREFIX, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_distlock.concurrency.flow import Flow

    from .lanes import Lane
    from .nodes import Slot

# Keys looked at in one step of SCAN, and described in one call.
SCANNED, DESCRIBED = b"1000", 100
# Digits of the digest by which a vote is shown.
DIGEST = 16


def _ask(lane: Lane, commands: Mapping[int, bytes], until: float) -> Flow[Outcome]:
    """One command to each of some nodes; those that cannot answer soon do not count."""
    asked = monotonic()
    patience = max(0.0, until - asked)
    questions = [
        Question(commands[index], repeat=True) if index in commands else None for index in range(len(lane.lines))
    ]

    def judge(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
        return heard(answers, elapsed=elapsed, patience=patience)

    return (yield from lane.ask(questions, judge, asked=asked, patience=patience, until=until))


def _replies(outcome: Outcome) -> dict[int, Any]:
    return {
        index: slot.reply
        for index, slot in enumerate(outcome.slots)
        if slot is not None and slot.done and not isinstance(slot.reply, ReplyError)
    }


def listing(alias: str, lane: Lane, patience: float) -> Flow[list[LockInfo] | Outcome]:
    """Every lock that any node knows; the outcome instead if too few nodes can be asked."""
    until = monotonic() + patience
    nodes = len(lane.lines)
    cursors: dict[int, bytes] = dict.fromkeys(range(nodes), b"0")
    keys: dict[int, set[bytes]] = {index: set() for index in cursors}
    while cursors:
        scans = {i: pack("SCAN", at, "MATCH", PREFIX + b"{*}", "COUNT", SCANNED) for i, at in cursors.items()}
        outcome = yield from _ask(lane, scans, until)
        replies = _replies(outcome)
        for index in list(cursors):
            if index not in replies:
                del cursors[index], keys[index]
                continue
            cursors[index], found = replies[index]
            keys[index].update(found)
            if cursors[index] == b"0":
                del cursors[index]
        if len(keys) < majority(nodes):
            return outcome
    copies: dict[tuple[str, str], list[Seen]] = {}
    left = {index: sorted(found) for index, found in keys.items() if found}
    while left:
        parts = {index: found[:DESCRIBED] for index, found in left.items()}
        outcome = yield from _ask(lane, {index: _describe(part) for index, part in parts.items()}, until)
        for index, rows in _replies(outcome).items():
            for key, row in zip(parts[index], rows, strict=True):
                copy = seen(key, row)
                if copy is not None:
                    copies.setdefault((copy.text, copy.digest), []).append(copy)
        left = {index: found[DESCRIBED:] for index, found in left.items() if found[DESCRIBED:]}
    return [info_of(alias, each, nodes) for each in copies.values()]


def _describe(keys: list[bytes]) -> bytes:
    return DESCRIBE.whole(tuple(word for key in keys for word in (key, key + b":queue", key + b":waiters")))


def break_everywhere(lane: Lane, info: LockInfo, patience: float) -> Flow[bool | Outcome]:
    """Delete what ``info`` shows on all nodes; was it there?"""
    token = info.details.get("token", "")
    if len(token) != DIGEST:  # less of it would be that of others as well
        return False
    command = BREAK.whole(keys_of(info.key), token)
    outcome = yield from _ask(lane, dict.fromkeys(range(len(lane.lines)), command), monotonic() + patience)
    if len(_replies(outcome)) < majority(len(lane.lines)):
        return outcome
    return any(reply == 1 for reply in _replies(outcome).values())


class Seen(NamedTuple):
    """A lock as one node shows it."""

    text: str
    digest: str  # of the vote, as BREAK wants it
    facts: dict[str, Any]
    ttl: float  # seconds; below zero: for ever
    waiters: int
    waiting: tuple[str, ...]


def seen(key: bytes, row: list[Any]) -> Seen | None:
    """A row of DESCRIBE; None if the key has gone. What cannot be read is held by nobody knows whom."""
    value, ttl, waiters, told = row
    if value is None:
        return None
    word, _, rest = value.partition(b" ")
    digest = hashlib.sha1(word, usedforsecurity=False).hexdigest()[:DIGEST]
    text = key[len(PREFIX) + 1 : -1].decode("ascii", "replace")
    return Seen(text, digest, facts_of(rest), ttl / 1000, waiters, tuple(who_of(facts_of(each)) for each in told))


def info_of(alias: str, copies: list[Seen], nodes: int) -> LockInfo:
    """One lock of one holder, as ``copies`` of ``nodes`` nodes show it."""
    first = copies[0]
    name = first.facts.get("name")
    # those who wait stand in line at one node, which may have changed
    line = max(copies, key=lambda copy: copy.waiters)
    return LockInfo(
        backend=alias,
        key=first.text,
        name=name if isinstance(name, str) else None,
        holder=who_of(first.facts),
        acquired_at=moment_of(first.facts.get("since")),
        # when a majority will have let it go cannot be told from fewer
        expires_at=datetime.now(UTC) + timedelta(seconds=max(copy.ttl for copy in copies)),
        waiters=line.waiters,
        waiting=line.waiting,
        details={"token": first.digest, "nodes": f"{len(copies)} of {nodes}"},
    )
