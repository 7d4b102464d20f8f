"""The nodes of one lock's contenders in ZooKeeper: their names, their order and their data.

A node is called ``<token>-<mode>-<sequence>``. By the token its owner finds a node whose creation was never confirmed;
the mode is ``x`` (exclusive), ``s`` (shared) or ``n5`` (a semaphore of five); the sequence is ZooKeeper's.
"""

from __future__ import annotations

import json
import os
import re
import socket
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.concurrency.origin import describe_caller
from django_distlock.records import Claim, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NODE = re.compile(r"([0-9a-f]{32})-(x|s|n[1-9][0-9]*)-([0-9]{10}|-[0-9]{9,10})")
# The sequence is a signed counter of 32 bits, which becomes negative after its highest value.
_WRAP, _HALF = 2**32, 2**31
_TEXT = 255  # most characters of a holder's text that are shown, because another program may have written it


class LockNode(NamedTuple):
    """One contender. ``limit`` is 0 except for a semaphore."""

    name: str
    token: str
    shared: bool
    limit: int
    sequence: int


def mode_of(claim: Claim) -> str:
    """The mode of ``claim`` in the name of its node."""
    return f"n{claim.limit}" if claim.limit else "s" if claim.shared else "x"


def parse(name: str) -> LockNode | None:
    """The contender of that name; None for a node of another program."""
    found = _NODE.fullmatch(name)
    if found is None:
        return None
    token, mode, sequence = found.groups()
    return LockNode(name, token, mode == "s", int(mode[1:] or 0), int(sequence))


def is_exclusive(name: str) -> bool:
    """Is it the name of a contender for an exclusive lock?"""
    return "-x-" in name


def queue(names: Iterable[str]) -> list[LockNode]:
    """The contenders in order of arrival. Nodes of other programs are left out.

    No two are half the range of the counter apart, so that the order holds where the counter wraps.
    """
    nodes = [node for node in map(parse, names) if node is not None]
    if len(nodes) < 2:
        return nodes
    origin = nodes[0].sequence - _HALF
    return sorted(nodes, key=lambda node: (node.sequence - origin) % _WRAP)


def place_of(nodes: Sequence[LockNode], token: str) -> int | None:
    """How many are ahead of the contender with this token; None if it is not in the queue."""
    return next((index for index, node in enumerate(nodes) if node.token == token), None)


class Standing(NamedTuple):
    """Whether a contender holds the lock. If not: the node that it watches, or None for the whole queue."""

    granted: bool
    behind: str | None = None


def turn(nodes: Sequence[LockNode], place: int) -> Standing:
    """The turn of the contender at ``place``. The end of a hold wakes only those that can be granted the lock then.

    An exclusive contender watches the one ahead of it, a shared one the last exclusive one ahead of it. Of a
    semaphore's waiters only the first one watches the whole queue, since any of the holders may leave; each of the
    others watches the waiter ahead of it, which changes its node when it is granted.
    """
    mine = nodes[place]
    if mine.limit:
        if place < mine.limit:
            return Standing(True)
        return Standing(False, nodes[place - 1].name if place > mine.limit else None)
    ahead = [node for node in nodes[:place] if not (mine.shared and node.shared)]
    return Standing(False, ahead[-1].name) if ahead else Standing(True)


def holders(nodes: Sequence[LockNode]) -> int:
    """How many contenders at the head of the queue hold the lock."""
    return next((place for place in range(len(nodes)) if not turn(nodes, place).granted), len(nodes))


class NodeData:
    """The data of this process's nodes, which name the holder to operators."""

    def __init__(self) -> None:
        self._process = f"{socket.gethostname()}:{os.getpid()}"

    def of(self, claim: Claim, since: float) -> bytes:
        """JSON in ASCII, since a name may contain characters without a UTF-8 form."""
        who = encode_basestring_ascii(f"{self._process}:{describe_caller()}")
        name = encode_basestring_ascii(claim.key.name)
        return f'{{"name": {name}, "holder": {who}, "since": {since:.6f}}}'.encode("ascii")


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def holder_of(data: bytes) -> str | None:
    """The holder that the data name; None if another program wrote them."""
    holder = _parsed(data).get("holder")
    return holder[:_TEXT] if isinstance(holder, str) else None


def described(
    backend: str, key: str, node: LockNode, data: bytes, fence: int, waiters: int, waiting: Iterable[str] = ()
) -> LockInfo:
    """A holder as an operator sees it, without its name if another program wrote the data."""
    facts = _parsed(data)
    name = facts.get("name")
    return LockInfo(
        backend=backend,
        key=key,
        name=name if isinstance(name, str) else None,
        shared=node.shared,
        holder=holder_of(data),
        acquired_at=_moment(facts.get("since")),
        fence=fence,
        waiters=waiters,
        waiting=tuple(waiting),
        details={"node": node.name},
    )


def _moment(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
