"""Held locks as rows of a changelist: each with an identity of its own, and all of them as what a changelist takes for
a queryset.
"""

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
    report: BackendReport
    now: datetime

    @property
    def engine(self) -> str:
        """The class of the backend."""
        return self.report.backend

    @property
    def breakable(self) -> bool:
        return self.report.breakable and self.kind == "named"

    @property
    def kind(self) -> str:
        """named, table or row."""
        kind = kind_of(self.info)
        return KINDS.get(kind, kind)

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
    """What Django's ChangeList, its paginator and its actions ask of a queryset. The engines are asked when somebody
    wants to know, and then for the locks of one page and for how many there are at once.
    """

    ordered = True

    def __init__(self, query: LockQuery | None = None, using: str | None = None, places: frozenset[str] = frozenset()):
        self._query = query or LockQuery()
        self._using = using
        self._places = places

    def having(self, **wanted: Any) -> Rows:
        """Those for which fields of LockQuery have these values, too."""
        return Rows(replace(self._query, **wanted), self._using, self._places)

    def of(self, alias: str) -> Rows:
        return Rows(self._query, alias, self._places)

    def at(self, pks: Iterable[str]) -> Rows:
        """Those of the same locks as the primary keys, by whomever they are held now."""
        places = frozenset(pk.rpartition("/")[0] for pk in pks)
        keys = frozenset(place.partition("/")[2] for place in places)
        # a key that is not in the address has to be looked for
        known = None if any(key.startswith("~") for key in keys) else keys
        return Rows(replace(self._query, keys=known, start=0, stop=None), self._using, places)

    def filter(self, *, pk__in: Iterable[str]) -> list[Row]:
        """Those with one of the primary keys: what an action was asked for."""
        wanted = set(pk__in)
        return [row for row in self.at(wanted).rows if row.pk in wanted]

    @cached_property
    def _page(self) -> LockPage:
        return find_locks(self._query, self._using)

    @cached_property
    def rows(self) -> list[Row]:
        now = timezone.now()
        reports = {report.alias: report for report in self._page.reports}
        rows = (Row(info, reports[info.backend], now) for info in self._page.locks)
        return [row for row in rows if not self._places or row.place in self._places]

    @property
    def errors(self) -> list[BackendReport]:
        """Of the aliases that do not answer."""
        return [report for report in self._page.reports if report.error is not None]

    @property
    def total(self) -> int:
        """How many there are, whether they match or not."""
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


# By what the columns are sorted.
SORTS = {
    "lock__name": "name",
    "lock__backend": "backend",
    "lock__mode": "mode",
    "lock__holder": "holder",
    "lock__age": "-since",
    "lock__ttl": "expiry",
    "lock__waiters": "waiters",
}


def sorts(fields: Iterable[str]) -> tuple[str, ...]:
    """The order of a LockQuery for names of SORTS, with a minus for the other way round."""
    return tuple(
        SORTS[field.removeprefix("-")] if field[:1] != "-" else _turned(SORTS[field.removeprefix("-")])
        for field in fields
    )


def _turned(field: str) -> str:
    return field[1:] if field[:1] == "-" else f"-{field}"


def seen(text: str) -> tuple[str, str, float]:
    """Primary key, mark and time of :attr:`Row.seen`."""
    match = _SEEN.fullmatch(text)
    return (match["pk"], match["mark"], float(match["stamp"])) if match else (text, "?", float("inf"))
