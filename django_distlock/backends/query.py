"""Which of the held locks somebody wants to see, and in what order: one meaning for all engines.

An engine with a query language chooses by itself; :func:`chosen` is for the others, and for what is put together from
several engines.
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
    """What is None does not matter.

    ``text`` is a part of the name or of the engine's key; upper and lower case are one. ``keys`` are what engines call
    the locks. ``awaited``: does somebody wait? ``older`` is in seconds and leaves out locks of unknown age. ``order``
    names keys of ORDERS, the first counts most, with a minus for the other way round; what is not known comes last in
    both. Of what is found the locks from ``start`` up to ``stop`` are wanted.
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
        """Does it depend on how many wait?"""
        return self.awaited is not None or any(field.removeprefix("-") == "waiters" for field in self.order)


class Chosen(NamedTuple):
    """What one engine has for a query: ``locks``, cut as it wants; how many match it, and how many there are."""

    locks: Sequence[LockInfo]
    matching: int
    total: int


class Mine(NamedTuple):
    """What only this process knows of a lock that it holds: since when, on its monotonic clock, and who.

    ``session`` is what the server calls the session that has the lock, or empty.
    """

    key: str
    session: str
    name: str
    held_at: float
    holder: str


@dataclass(slots=True, kw_only=True, frozen=True)
class LockPage:
    """What several engines have for a query: ``locks`` in order and cut; how many match it, and how many there are.

    ``reports`` are of all that were asked, with their errors, and without locks.
    """

    locks: tuple[LockInfo, ...]
    matching: int
    total: int
    reports: tuple[BackendReport, ...]


def kind_of(info: LockInfo) -> str:
    """One of Kind."""
    return info.details.get("kind", "named")


def name_order(name: str) -> str:
    """As databases sort names, too: in ASCII, with escapes for what they may not be able to keep."""
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
    """A value that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


def order_key(order: Sequence[str]) -> Callable[[LockInfo], Any]:
    """The key by which locks are sorted in that order; at last by engine and key, so that no two are equal."""
    fields = [(ORDERS[field.removeprefix("-")], field.startswith("-")) for field in order]

    def key(info: LockInfo) -> tuple[Any, ...]:
        found: list[Any] = []
        for value_of, down in fields:
            value = value_of(info)
            found.append((value is None, 0 if value is None else _Down(value) if down else value))
        return (*found, info.backend, info.key)

    return key


def condition(query: LockQuery, now: datetime) -> Callable[[LockInfo], bool]:
    """Is it one of those that ``query`` is about?"""
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
    """For engines that can only show all that they have."""
    everything = list(infos)
    found = list(filter(condition(query, now), everything))
    if query.order:
        found.sort(key=order_key(query.order))
    return Chosen(found[query.start : query.stop], len(found), len(everything))


def merged(parts: Sequence[Sequence[LockInfo]], query: LockQuery) -> tuple[LockInfo, ...]:
    """Of engines that each gave what comes first in the order of ``query``, cut as it wants."""
    together = heapq.merge(*parts, key=order_key(query.order)) if query.order else itertools.chain(*parts)
    return tuple(itertools.islice(together, query.start, query.stop))
