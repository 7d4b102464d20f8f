"""Listing the locks of a server, and breaking one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.backends.holders import facts_of, moment_of, who_of
from django_distlock.records import MOST_WAITING, LockInfo

from .nodes import LockNode, holders, queue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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
        (found,) = await session.ask(until, lambda kazoo: kazoo.get_children_async(session.path))
        keys = found or []
    else:
        keys = sorted(filter(str.isalnum, wanted))  # other text must not become part of a path
    queues = await _answers(session, until, "get_children_async", keys)
    held: list[tuple[str, LockNode, int]] = []
    waiting: dict[str, list[str]] = {}
    for key, names in zip(keys, queues, strict=True):
        nodes = queue(names or ())
        inside = holders(nodes)
        held += [(key, node, len(nodes) - inside) for node in nodes[:inside]]
        waiting[key] = [f"{key}/{node.name}" for node in nodes[inside : inside + MOST_WAITING]]
    shown = [f"{key}/{node.name}" for key, node, _ in held] + [path for paths in waiting.values() for path in paths]
    answers = await _answers(session, until, "get_async", shown)
    found = dict(zip(shown, answers, strict=True))
    return [
        described(alias, key, node, found[f"{key}/{node.name}"], count, [found[path] for path in waiting[key]])
        for key, node, count in held
        if found[f"{key}/{node.name}"] is not None
    ]


def described(
    alias: str, key: str, node: LockNode, answer: tuple[bytes, Any], count: int, waiting: Sequence[Any] = ()
) -> LockInfo:
    """A holder as an operator sees it. ``answer``: the data and the stat of its node; ``waiting``: those of the first
    of its ``count`` waiters, None where a node has gone."""
    data, stat = answer
    facts = facts_of(data)
    return LockInfo(
        backend=alias,
        key=key,
        name=facts["name"] if isinstance(facts.get("name"), str) else None,
        shared=node.shared,
        holder=who_of(facts),
        acquired_at=moment_of(stat.ctime * 1000),
        fence=stat.czxid,
        waiters=count,
        waiting=tuple(who_of(facts_of(each[0])) for each in waiting if each is not None),
        details={"node": node.name},
    )


async def delete_holder(session: ZooKeeperSession, until: float, key: str, fence: int | None) -> bool:
    """Delete the node with this fence. Returns False if it no longer exists."""
    if not key.isalnum():
        return False
    (names,) = await _answers(session, until, "get_children_async", [key])
    paths = [f"{key}/{node.name}" for node in queue(names or ())]
    answers = await _answers(session, until, "get_async", paths)
    for path, answer in zip(paths, answers, strict=True):
        if answer is not None and answer[1].czxid == fence:
            # the token in the name is unique: no other node was ever called so
            (deleted,) = await _answers(session, until, "delete_async", [path])
            return deleted is not None
    return False


async def _answers(session: ZooKeeperSession, until: float, method: str, paths: Sequence[str]) -> list[Any]:
    """kazoo's ``method`` of each path below the session's; None for a node that does not exist."""
    found: list[Any] = []
    requests = [_request(method, f"{session.path}/{path}") for path in paths]
    for start in range(0, len(requests), BATCH):
        found += await session.ask(until, *requests[start : start + BATCH])
    return found


def _request(method: str, path: str) -> Callable[[Any], Any]:
    return lambda kazoo: getattr(kazoo, method)(path)
