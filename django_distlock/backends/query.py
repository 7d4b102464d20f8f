"""Queries of held locks: which ones, and in what order. They mean the same on all engines.

An engine with a query language selects by itself. :func:`chosen` is for the others, and for locks of several engines.
"""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from django_distlock.records import BackendReport, LockInfo

# A lock with a name, or one on a table or its rows.
Kind = Literal["named", "relation", "row"]


@dataclass(slots=True, kw_only=True, frozen=True)
class LockQuery:
    """Conditions and an order; a condition that is None is not applied.

    ``text`` is a part of the name or of the engine's key, in upper or lower case. ``keys`` are the engines' keys.
    ``awaited``: whether the lock has waiters. ``older``: held for that many seconds; excludes locks of unknown age.
    ``order`` has keys of ORDERS, the first counts most; a minus reverses the order, but unknown values are last in
    both. The result has the locks from ``start`` up to ``stop``.
    """

    text: str = ""
    keys: frozenset[str] | None = None
    shared: bool | None = None
    awaited: bool | None = None
    older: float | None = None
    kind: Kind | None = None
    order: tuple[str, ...] = ()
    start: int = 0
    stop: int | None = None

    @property
    def minds_waiters(self) -> bool:
        """Does the result depend on the number of waiters?"""
        return self.awaited is not None or any(field.removeprefix("-") == "waiters" for field in self.order)


class Chosen(NamedTuple):
    """The result of one engine: ``locks`` from start to stop; how many match the query, and how many there are."""

    locks: Sequence[LockInfo]
    matching: int
    total: int


class Mine(NamedTuple):
    """A lock of this process, with what the server does not know: since when, on the monotonic clock, and the holder.

    ``session`` is the server's number of the session that has the lock, or empty.
    """

    key: str
    session: str
    name: str
    held_at: float
    holder: str


@dataclass(slots=True, kw_only=True, frozen=True)
class LockPage:
    """The result of several engines: ``locks`` in order, from start to stop; how many match, and how many there are.

    ``reports`` has one report of each engine, with its error, and without locks.
    """

    locks: tuple[LockInfo, ...]
    matching: int
    total: int
    reports: tuple[BackendReport, ...]


def kind_of(info: LockInfo) -> str:
    """One of Kind."""
    return info.details.get("kind", "named")


def name_order(name: str) -> str:
    """A sort key that databases have too: ASCII, with escapes for characters that some cannot store."""
    return json.dumps(name)[1:-1].lower()


ORDERS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda info: name_order(info.key if info.name is None else info.name),
    "backend": lambda info: info.backend,
    "mode": lambda info: info.shared,
    "holder": lambda info: name_order(info.holder) if info.holder else None,
    "since": lambda info: info.acquired_at,
    "expiry": lambda info: info.expires_at,
    "waiters": lambda info: info.waiters,
}


class _Down:
    """A value that sorts in the opposite order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


def order_key(order: Sequence[str]) -> Callable[[LockInfo], Any]:
    """The sort key for ``order``; then by engine and key, so that no two locks are equal."""
    fields = [(ORDERS[field.removeprefix("-")], field.startswith("-")) for field in order]

    def key(info: LockInfo) -> tuple[Any, ...]:
        found: list[Any] = []
        for value_of, down in fields:
            value = value_of(info)
            found.append((value is None, 0 if value is None else _Down(value) if down else value))
        return (*found, info.backend, info.key)

    return key


def condition(query: LockQuery, now: datetime) -> Callable[[LockInfo], bool]:
    """A function: does a lock match ``query``?"""
    part = query.text.casefold()
    before = None if query.older is None else now - timedelta(seconds=query.older)

    def matches(info: LockInfo) -> bool:
        return (
            (query.keys is None or info.key in query.keys)
            and (query.shared is None or info.shared == query.shared)
            and (query.awaited is None or bool(info.waiters) == query.awaited)
            and (before is None or (info.acquired_at is not None and info.acquired_at < before))
            and (query.kind is None or kind_of(info) == query.kind)
            and (not part or part in (info.name or "").casefold() or part in info.key.casefold())
        )

    return matches


def chosen(infos: Iterable[LockInfo], query: LockQuery, now: datetime) -> Chosen:
    """Select from all locks of an engine that cannot select by itself."""
    everything = list(infos)
    found = list(filter(condition(query, now), everything))
    if query.order:
        found.sort(key=order_key(query.order))
    return Chosen(found[query.start : query.stop], len(found), len(everything))


def merged(parts: Sequence[Sequence[LockInfo]], query: LockQuery) -> tuple[LockInfo, ...]:
    """Merge the results of several engines, each in the order of ``query``; from start to stop."""
    together = heapq.merge(*parts, key=order_key(query.order)) if query.order else itertools.chain(*parts)
    return tuple(itertools.islice(together, query.start, query.stop))
