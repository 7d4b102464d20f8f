"""Listing the locks of a server, and breaking one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django_distlock.records import MOST_WAITING

from .nodes import LockNode, described, holder_of, holders, queue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from django_distlock.records import LockInfo

    from .session import ZooKeeperSession

# Requests that are sent together.
BATCH = 500


async def listed(
    session: ZooKeeperSession, until: float, alias: str, wanted: Collection[str] | None = None
) -> list[LockInfo]:
    """Every holder, or those of the ``wanted`` keys.

    Takes three round trips, or two, for up to BATCH locks.
    """
    if wanted is None:
        (found,) = await _answers(session, until, [_children(session.path)])
        keys = found or []
    else:
        keys = sorted(filter(str.isalnum, wanted))  # other text must not become part of a path
    queues = await _answers(session, until, [_children(f"{session.path}/{key}") for key in keys])
    held: list[tuple[str, LockNode, int]] = []
    shown: list[str] = []
    for key, names in zip(keys, queues, strict=True):
        nodes = queue(names or ())
        inside = holders(nodes)
        held += [(key, node, len(nodes) - inside) for node in nodes[:inside]]
        shown += [f"{key}/{node.name}" for node in nodes[: inside + MOST_WAITING]]
    answers = await _answers(session, until, [_data(f"{session.path}/{path}") for path in shown])
    found = dict(zip(shown, answers, strict=True))
    waiting: dict[str, list[str]] = {}
    inside_now = {f"{key}/{node.name}" for key, node, _ in held}
    for path, answer in found.items():
        if answer is not None and path not in inside_now:
            waiting.setdefault(path.partition("/")[0], []).append(holder_of(answer[0]) or "unknown")
    return [
        described(alias, key, node, answer[0], answer[1].czxid, waiters, waiting.get(key, ()))
        for key, node, waiters in held
        if (answer := found[f"{key}/{node.name}"]) is not None
    ]


async def delete_holder(session: ZooKeeperSession, until: float, key: str, fence: int | None) -> bool:
    """Delete the node with this fence. Returns False if it no longer exists."""
    if not key.isalnum():
        return False
    parent = f"{session.path}/{key}"
    (names,) = await _answers(session, until, [_children(parent)])
    paths = [f"{parent}/{node.name}" for node in queue(names or ())]
    answers = await _answers(session, until, [_data(path) for path in paths])
    for path, answer in zip(paths, answers, strict=True):
        if answer is not None and answer[1].czxid == fence:
            # the token in the name is unique: no other node was ever called so
            (deleted,) = await session.ask(until, partial(deletion, path))
            return deleted is not None
    return False


def deletion(path: str, kazoo: Any) -> Any:
    """The request to delete a node, as a partial of this function."""
    return kazoo.delete_async(path)


def _children(path: str) -> Callable[[Any], Any]:
    return lambda kazoo: kazoo.get_children_async(path)


def _data(path: str) -> Callable[[Any], Any]:
    return lambda kazoo: kazoo.get_async(path)


async def _answers(session: ZooKeeperSession, until: float, requests: Sequence[Callable[[Any], Any]]) -> list[Any]:
    """The answers, with None for a node that does not exist."""
    found: list[Any] = []
    for start in range(0, len(requests), BATCH):
        found += await session.ask(until, *requests[start : start + BATCH])
    return found
