"""The locks on all nodes together, and taking one away on all of them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.holders import facts_of, moment_of, who_of
from django_distlock.concurrency import clock
from django_distlock.records import LockInfo

from .connection import PENDING, pack
from .nodes import BREAK, DESCRIBE, PREFIX, NodeRequest, keys_of
from .rounds import ask_all, majority

if TYPE_CHECKING:
    from .nodes import Nodes
    from .rounds import Round

# Keys looked at in one step of SCAN, and described in one call.
SCANNED, DESCRIBED = b"1000", 100
# Digits of the digest by which a vote is shown.
DIGEST = 16


def _replies(ballot: Round) -> dict[int, Any]:
    sent = {index: each.reply for index, each in enumerate(ballot.sent) if each is not None}
    return {index: reply for index, reply in sent.items() if reply is not PENDING and not isinstance(reply, Exception)}


async def listing(alias: str, nodes: Nodes, patience: float) -> list[LockInfo]:
    """Every lock that any node knows. BackendUnavailable if too few nodes answer."""
    until, count = clock.now() + patience, len(nodes.all)
    cursors: dict[int, bytes] = dict.fromkeys(range(count), b"0")
    keys: dict[int, set[bytes]] = {index: set() for index in cursors}
    while cursors:
        scans = {index: _scan(cursor) for index, cursor in cursors.items()}
        ballot = await ask_all(nodes, scans, until)
        replies = _replies(ballot)
        for index in list(cursors):
            if index not in replies:
                del cursors[index], keys[index]
                continue
            cursors[index], found = replies[index]
            keys[index].update(found)
            if cursors[index] == b"0":
                del cursors[index]
        if len(keys) < majority(count):
            raise ballot.error()
    copies: dict[tuple[str, str], list[Seen]] = {}
    left = {index: sorted(found) for index, found in keys.items() if found}
    while left:
        parts = {index: found[:DESCRIBED] for index, found in left.items()}
        ballot = await ask_all(nodes, {index: _describe(part) for index, part in parts.items()}, until)
        for index, rows in _replies(ballot).items():
            for key, row in zip(parts[index], rows, strict=True):
                copy = seen(key, row)
                if copy is not None:
                    copies.setdefault((copy.text, copy.digest), []).append(copy)
        left = {index: found[DESCRIBED:] for index, found in left.items() if found[DESCRIBED:]}
    return [info_of(alias, each, count) for each in copies.values()]


def _scan(cursor: bytes) -> NodeRequest:
    return NodeRequest(None, packed=pack("SCAN", cursor, "MATCH", PREFIX + b"{*}", "COUNT", SCANNED), repeat=True)


def _describe(keys: list[bytes]) -> NodeRequest:
    return NodeRequest(
        DESCRIBE, tuple(word for key in keys for word in (key, key + b":queue", key + b":waiters")), repeat=True
    )


async def break_everywhere(nodes: Nodes, info: LockInfo, patience: float) -> bool:
    """Delete the lock that ``info`` shows on all nodes. False if none has it. BackendUnavailable if too few answer."""
    token = info.details.get("token", "")
    if len(token) != DIGEST:  # a part of it could mean other votes as well
        return False
    request = NodeRequest(BREAK, keys_of(info.key), token, repeat=True)
    until, requests = clock.now() + patience, dict.fromkeys(range(len(nodes.all)), request)
    ballot = await ask_all(nodes, requests, until)
    replies = _replies(ballot)
    if len(replies) < majority(len(nodes.all)):
        raise ballot.error()
    if late := {index: request for index in requests if index not in replies}:  # not connected as fast as the others
        replies |= _replies(await ask_all(nodes, late, until))
    return any(reply == 1 for reply in replies.values())


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
