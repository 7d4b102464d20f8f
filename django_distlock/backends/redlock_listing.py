"""The locks on all nodes together, and taking one away on all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .redis_protocol import ReplyError, pack
from .redlock_inquiry import Outcome, Question
from .redlock_quorum import Answer, Verdict, heard, majority
from .redlock_scripts import BREAK, DESCRIBE, DIGEST, PREFIX, Seen, info_of, keys_of, seen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_distlock.records import LockInfo
    from django_distlock.waiting import Flow

    from .redlock_lanes import Lane
    from .redlock_nodes import Slot

# Keys looked at in one step of SCAN, and described in one call.
SCANNED, DESCRIBED = b"1000", 100


def _ask(lane: Lane, commands: Mapping[int, bytes], until: float) -> Flow[Outcome]:
    """One command to each of some nodes; those that cannot answer soon do not count."""
    asked = time.monotonic()
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
    until = time.monotonic() + patience
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
    return DESCRIBE.whole(tuple(word for key in keys for word in (key, key + b":queue")))


def break_everywhere(lane: Lane, info: LockInfo, patience: float) -> Flow[bool | Outcome]:
    """Delete what ``info`` shows on all nodes; was it there?"""
    token = info.details.get("token", "")
    if len(token) != DIGEST:  # less of it would be that of others as well
        return False
    command = BREAK.whole(keys_of(info.key), token)
    outcome = yield from _ask(lane, dict.fromkeys(range(len(lane.lines)), command), time.monotonic() + patience)
    if len(_replies(outcome)) < majority(len(lane.lines)):
        return outcome
    return any(reply == 1 for reply in _replies(outcome).values())
