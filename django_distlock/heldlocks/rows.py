"""Held locks as rows of a changelist: each with an identity of its own, and all of them as what a changelist takes for
a queryset.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_distlock import UnsupportedOperation, break_lock, held_locks
from django_distlock.models import HeldLock
from django_distlock.oneline import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from django.http import HttpRequest

    from django_distlock.records import BackendReport, LockInfo

# What tells one holder from the next, by engine. What a holder says of itself is not there: it may come to know more.
_FACTS = ("token", "node", "pid", "connection", "backend_start")
# Keys that may stand in an address as they are.
_PLAIN = re.compile(r"[\w.:-]{1,100}", re.ASCII)
# Two times of one holding differ by less: they may come from different clocks.
SAME = 1.0
_SEEN = re.compile(r"(?P<pk>.*)(?P<mark>[@?])(?P<stamp>\d{1,12}\.\d{3})", re.DOTALL)
KINDS = {"relation": "table", "row": "row"}


@dataclass(frozen=True, slots=True)
class Row:
    """One held lock at the time ``now``."""

    info: LockInfo
    engine: str
    breakable: bool
    now: datetime

    @property
    def kind(self) -> str:
        """named, table or row."""
        kind = self.info.details.get("kind")
        return "named" if kind is None else KINDS.get(kind, kind)

    @property
    def label(self) -> str:
        """The name, or the engine's key where that is not known; fit to be shown."""
        return one_line(self.info.key if self.info.name is None else self.info.name, 200)

    @property
    def age(self) -> float | None:
        """Seconds since it was acquired, if that is known."""
        return None if self.info.acquired_at is None else (self.now - self.info.acquired_at).total_seconds()

    @property
    def ttl_left(self) -> float | None:
        """Seconds until it ends by itself, if it does."""
        return None if self.info.expires_at is None else (self.info.expires_at - self.now).total_seconds()

    @property
    def place(self) -> str:
        """Alias and key: the same for whoever holds the lock."""
        key = self.info.key
        return f"{self.info.backend}/{key if _PLAIN.fullmatch(key) else '~' + _digest(key)}"

    @property
    def pk(self) -> str:
        """The place, and a digest of what tells this holder from the next one of the same lock."""
        info = self.info
        facts = [info.details[fact] for fact in _FACTS if fact in info.details]
        if info.fence is not None:
            facts.append(str(info.fence))
        if not facts:
            facts = [info.holder or "", str(info.acquired_at)]
        return f"{self.place}/{_digest(*facts, str(info.shared))[:16]}"

    @property
    def seen(self) -> str:
        """The primary key, and since when the lock was held as far as one could see, or when one looked: what a form
        shows and gets back. Where a lock belongs to a session, the same session may have let go and come back."""
        at = self.info.acquired_at
        return f"{self.pk}?{self.now.timestamp():.3f}" if at is None else f"{self.pk}@{at.timestamp():.3f}"

    def is_still(self, mark: str, stamp: float) -> bool:
        """Is it the holding that ``seen`` ended with ``mark`` and ``stamp`` for?"""
        at = self.info.acquired_at
        if at is None or not {"pid", "connection"} & self.info.details.keys():
            return True
        began = at.timestamp() - stamp
        return began <= 0 if mark == "?" else abs(began) < SAME

    def take_away(self, reason: str) -> bool:
        """Break it; False if this holder had gone. UnsupportedOperation, BackendUnavailable."""
        if not self.breakable:
            raise UnsupportedOperation
        return break_lock(self.info, reason=reason)

    def as_object(self) -> HeldLock:
        """An instance of the model, for the admin's machinery; its attribute ``row`` is this row."""
        made = HeldLock(key=self.pk)
        made.row = self  # type: ignore[attr-defined]
        return made


def _digest(*parts: str) -> str:
    """Of a list of texts, so that ("a", "bc") and ("ab", "c") differ."""
    blob = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(blob, digest_size=16).hexdigest()


class Rows:
    """What Django's ChangeList, its paginator and its actions ask of a queryset, over rows that are there already.

    Objects of the model are made for the rows of one page only.
    """

    ordered = True

    def __init__(self, rows: Iterable[Row], errors: Sequence[BackendReport] = (), aliases: Sequence[str] = ()) -> None:
        self.rows = list(rows)
        self.errors = tuple(errors)
        self.aliases = tuple(aliases)

    def where(self, condition: Callable[[Row], bool]) -> Rows:
        """Those of which the condition is true."""
        return Rows(filter(condition, self.rows), self.errors, self.aliases)

    def filter(self, *, pk__in: Iterable[str]) -> Rows:
        """Those with one of the primary keys: what an action was asked for."""
        wanted = set(pk__in)
        return self.where(lambda row: row.pk in wanted)

    def search(self, query: str) -> Rows:
        """Those whose name, or key, contains the text; upper and lower case are one."""
        part = query.casefold()
        return self.where(lambda row: part in (row.info.name or "").casefold() or part in row.info.key.casefold())

    def order_by(self, *fields: str) -> Rows:
        """Sorted by names of SORTS, with a minus for the other way round; what is not known comes last in both."""
        found = list(self.rows)
        for field in reversed(fields):
            value, reverse = SORTS[field.removeprefix("-")], field.startswith("-")
            known = [row for row in found if value(row) is not None]
            known.sort(key=value, reverse=reverse)
            found = known + [row for row in found if value(row) is None]
        return Rows(found, self.errors, self.aliases)

    def count(self) -> int:
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> list[HeldLock]:
        return [row.as_object() for row in self.rows[part]]

    def __iter__(self) -> Iterator[HeldLock]:
        return iter(self[:])

    def _clone(self) -> list[HeldLock]:
        return self[:]


SORTS: dict[str, Callable[[Row], Any]] = {
    "lock__name": lambda row: (row.info.name or row.info.key).casefold(),
    "lock__backend": attrgetter("info.backend"),
    "lock__mode": attrgetter("info.shared"),
    "lock__holder": lambda row: row.info.holder and row.info.holder.casefold(),
    "lock__age": attrgetter("age"),
    "lock__ttl": attrgetter("ttl_left"),
    "lock__waiters": attrgetter("info.waiters"),
}


def seen(text: str) -> tuple[str, str, float]:
    """Primary key, mark and time of :attr:`Row.seen`."""
    match = _SEEN.fullmatch(text)
    return (match["pk"], match["mark"], float(match["stamp"])) if match else (text, "?", float("inf"))


def listed(using: str | None = None) -> Rows:
    """All that is held now, and which aliases do not answer; of one alias, or of all."""
    now = timezone.now()
    reports = held_locks(using)
    return Rows(
        (
            Row(info, report.backend, report.breakable and "kind" not in info.details, now)
            for report in reports
            for info in report.locks
        ),
        [report for report in reports if report.error is not None],
        [report.alias for report in reports],
    )


def listed_once(request: HttpRequest) -> Rows:
    """:func:`listed` of all aliases, once for each request."""
    found: Rows | None = getattr(request, "_distlock_rows", None)
    if found is None:
        found = listed()
        request._distlock_rows = found  # type: ignore[attr-defined]
    return found
