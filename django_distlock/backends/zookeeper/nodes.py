"""The nodes of one lock's contenders in ZooKeeper: their names, their order and whose turn it is.

A node is called ``<token>-<mode>-<sequence>``. By the token its owner finds a node whose creation was never confirmed;
the mode is ``x`` (exclusive), ``s`` (shared) or ``n5`` (a semaphore of five); the sequence is ZooKeeper's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.records import Claim

_NODE = re.compile(r"([0-9a-f]{32})-(x|s|n[1-9][0-9]*)-([0-9]{10}|-[0-9]{9,10})")
# The sequence is a signed counter of 32 bits, which becomes negative after its highest value.
_WRAP, _HALF = 2**32, 2**31


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

    An exclusive contender watches the one ahead of it, a shared one the last exclusive one ahead of it, and a
    semaphore's the whole queue, since any of the holders may leave.
    """
    mine = nodes[place]
    if mine.limit:
        return Standing(place < mine.limit)
    ahead = [node for node in nodes[:place] if not (mine.shared and node.shared)]
    return Standing(False, ahead[-1].name) if ahead else Standing(True)


def holders(nodes: Sequence[LockNode]) -> int:
    """How many contenders at the head of the queue hold the lock."""
    return next((place for place in range(len(nodes)) if not turn(nodes, place).granted), len(nodes))
