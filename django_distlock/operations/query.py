"""Which held locks a list shows, and in what order. It is the same for all engines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from django_distlock.records import LockInfo

# A lock with a name, or one on a table or its rows.
Kind = Literal["named", "relation", "row"]


def kind_of(info: LockInfo) -> str:
    """One of Kind."""
    return info.details.get("kind", "named")


def _folded(text: str | None) -> str | None:
    return None if text is None else text.casefold()


# What the columns are sorted by; None is unknown.
ORDERS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda info: _folded(info.key if info.name is None else info.name),
    "backend": lambda info: info.backend,
    "mode": lambda info: info.shared,
    "holder": lambda info: _folded(info.holder),
    "age": lambda info: None if info.acquired_at is None else -info.acquired_at.timestamp(),
    "expiry": lambda info: info.expires_at,
    "waiters": lambda info: info.waiters,
}


@dataclass(slots=True, kw_only=True, frozen=True)
class LockQuery:
    """Conditions and an order; a condition that is None is not applied.

    ``text`` is a part of the name or of the engine's key, in upper or lower case. ``awaited``: whether the lock has
    waiters. ``older``: held for that many seconds; excludes locks of unknown age. ``order`` has keys of ORDERS, the
    first counts most; a minus reverses the order, but unknown values are last in both.
    """

    text: str = ""
    shared: bool | None = None
    awaited: bool | None = None
    older: float | None = None
    kind: Kind | None = None
    order: tuple[str, ...] = ()

    def matches(self, info: LockInfo, now: datetime) -> bool:
        """Is ``info`` one of the wanted locks?"""
        part = self.text.casefold()
        return (
            (self.shared is None or info.shared == self.shared)
            and (self.awaited is None or bool(info.waiters) == self.awaited)
            and (self.older is None or _held_for(info, now) > timedelta(seconds=self.older))
            and (self.kind is None or kind_of(info) == self.kind)
            and (not part or part in (info.name or "").casefold() or part in info.key.casefold())
        )

    def select(self, infos: Iterable[LockInfo], now: datetime) -> list[LockInfo]:
        """The wanted locks, in order; those that are equal are sorted by engine and key."""
        found = sorted((info for info in infos if self.matches(info, now)), key=lambda info: (info.backend, info.key))
        for field in reversed(self.order):
            value_of = ORDERS[field.removeprefix("-")]
            known = [info for info in found if value_of(info) is not None]
            unknown = [info for info in found if value_of(info) is None]
            found = sorted(known, key=value_of, reverse=field.startswith("-")) + unknown
        return found


def _held_for(info: LockInfo, now: datetime) -> timedelta:
    return timedelta.min if info.acquired_at is None else now - info.acquired_at
