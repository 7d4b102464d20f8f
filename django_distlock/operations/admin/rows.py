"""Held locks as rows of a changelist: :class:`LockRow` is one, :class:`LockRows` stands for the queryset."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.functional import cached_property  # the one of functools locks all instances before Python 3.12

from django_distlock import UnsupportedOperation, break_lock
from django_distlock.backends.query import LockQuery, kind_of
from django_distlock.concurrency.text import one_line
from django_distlock.models import HeldLock
from django_distlock.operations.lookup import find_locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from django_distlock.backends.query import LockPage
    from django_distlock.records import BackendReport, LockInfo

# The details that identify a holder, by engine. Its own description is left out: it may change during the hold.
_FACTS = ("token", "node", "pid", "connection", "backend_start")
# Keys that can be part of an address without encoding.
_PLAIN = re.compile(r"[\w.:-]{1,100}", re.ASCII)
# Two times of the same hold, which may come from different clocks, differ by less; seconds.
SAME = 1.0
_SEEN = re.compile(r"(?P<pk>.*)(?P<mark>[@?])(?P<stamp>\d{1,12}\.\d{3})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LockRow:
    """One held lock at the time ``now``."""

    info: LockInfo
    report: BackendReport
    now: datetime

    @property
    def breakable(self) -> bool:
        return self.report.breakable and self.kind == "named"

    @property
    def kind(self) -> str:
        """A Kind of backends.query."""
        return kind_of(self.info)

    @property
    def label(self) -> str:
        """The name, or the engine's key if the name is not known, as printable text."""
        return one_line(self.info.key if self.info.name is None else self.info.name, 200)

    @property
    def age(self) -> float | None:
        """Seconds since it was acquired; None if that is not known."""
        return None if self.info.acquired_at is None else (self.now - self.info.acquired_at).total_seconds()

    @property
    def ttl_left(self) -> float | None:
        """Seconds until it expires; None without a TTL."""
        return None if self.info.expires_at is None else (self.info.expires_at - self.now).total_seconds()

    @property
    def place(self) -> str:
        """Alias and key: the same for every holder of the lock."""
        key = self.info.key
        return f"{self.info.backend}/{key if _PLAIN.fullmatch(key) else '~' + _digest(key)}"

    @property
    def pk(self) -> str:
        """The place, and a digest of what identifies this holder."""
        info = self.info
        facts = [info.details[fact] for fact in _FACTS if fact in info.details]
        if info.fence is not None:
            facts.append(str(info.fence))
        if not facts:
            facts = [info.holder or "", str(info.acquired_at)]
        return f"{self.place}/{_digest(*facts, str(info.shared))[:16]}"

    @property
    def seen(self) -> str:
        """What a form sends back: the primary key, and since when the lock is held or, if that is not known, when it
        was listed. Since then a session may have released the lock and acquired it again."""
        at = self.info.acquired_at
        return f"{self.pk}?{self.now.timestamp():.3f}" if at is None else f"{self.pk}@{at.timestamp():.3f}"

    def is_still(self, mark: str, stamp: float) -> bool:
        """Is it the same hold as that of :attr:`seen` with this ``mark`` and ``stamp``?"""
        at = self.info.acquired_at
        if at is None or not {"pid", "connection"} & self.info.details.keys():
            return True
        began = at.timestamp() - stamp
        return began <= 0 if mark == "?" else abs(began) < SAME

    def take_away(self, reason: str) -> bool:
        """Break the lock; False if this holder had gone. UnsupportedOperation, BackendUnavailable."""
        if not self.breakable:
            raise UnsupportedOperation
        return break_lock(self.info, reason=reason)

    def as_object(self) -> HeldLock:
        """An instance of the model, for the admin's machinery; its attribute ``row`` is this row."""
        made = HeldLock(key=self.pk)
        made.row = self  # type: ignore[attr-defined]
        return made


def _digest(*parts: str) -> str:
    """A digest of several texts: ("a", "bc") and ("ab", "c") differ."""
    blob = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(blob, digest_size=16).hexdigest()


class LockRows:
    """Has what Django's ChangeList, its paginator and its actions need of a queryset.

    The engines are asked when rows or their number are first needed: once, for the rows of one page and for all counts.
    """

    ordered = True

    def __init__(self, query: LockQuery | None = None, using: str | None = None, places: frozenset[str] = frozenset()):
        self._query = query or LockQuery()
        self._using = using
        self._places = places

    def having(self, **wanted: Any) -> LockRows:
        """Rows that in addition match these fields of LockQuery."""
        return LockRows(replace(self._query, **wanted), self._using, self._places)

    def of(self, alias: str) -> LockRows:
        """Rows of one alias."""
        return LockRows(self._query, alias, self._places)

    def at(self, pks: Iterable[str]) -> LockRows:
        """Rows of the locks that these primary keys name, whichever process holds them now."""
        places = frozenset(pk.rpartition("/")[0] for pk in pks)
        keys = frozenset(place.partition("/")[2] for place in places)
        # where the address has only a digest of a key, all locks are compared with it
        known = None if any(key.startswith("~") for key in keys) else keys
        return LockRows(replace(self._query, keys=known, start=0, stop=None), self._using, places)

    def filter(self, *, pk__in: Iterable[str]) -> list[LockRow]:
        """The rows that an action was chosen for."""
        wanted = set(pk__in)
        return [row for row in self.at(wanted).rows if row.pk in wanted]

    @cached_property
    def _page(self) -> LockPage:
        return find_locks(self._query, self._using)

    @cached_property
    def rows(self) -> list[LockRow]:
        now = timezone.now()
        reports = {report.alias: report for report in self._page.reports}
        rows = (LockRow(info, reports[info.backend], now) for info in self._page.locks)
        return [row for row in rows if not self._places or row.place in self._places]

    @property
    def errors(self) -> list[BackendReport]:
        """The reports of aliases that do not answer."""
        return [report for report in self._page.reports if report.error is not None]

    @property
    def total(self) -> int:
        """The number of all rows, whether they match or not."""
        return self._page.total

    def count(self) -> int:
        return self._page.matching

    def __len__(self) -> int:
        return self.count()

    def __getitem__(self, part: slice) -> list[HeldLock]:
        if (part.start or 0) != self._query.start:
            return self.having(start=part.start or 0, stop=part.stop)[part]
        return [row.as_object() for row in self.rows]

    def __iter__(self) -> Iterator[HeldLock]:
        return iter(self[:])

    def _clone(self) -> list[HeldLock]:
        return self[:]


def seen(text: str) -> tuple[str, str, float]:
    """Parse :attr:`LockRow.seen`: primary key, mark and time."""
    match = _SEEN.fullmatch(text)
    return (match["pk"], match["mark"], float(match["stamp"])) if match else (text, "?", float("inf"))
