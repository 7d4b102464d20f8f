"""The list of held locks for one request: what its address asks for, and the links that ask for something else."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_distlock.manager.introspection import held_locks
from django_distlock.manager.registry import registry

from .rows import kind_of, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from django.http import QueryDict

    from django_distlock.records import LockInfo

PER_PAGE = 100
# The oldest first.
DEFAULT_ORDER = ("-held_since",)


def _folded(text: str | None) -> str | None:
    return None if text is None else text.casefold()


# Columns: the name, the heading, and what it is sorted by (None is unknown). Most important columns first: narrow
# screens cut off the rest.
COLUMNS: dict[str, tuple[Any, Callable[[LockInfo], Any] | None]] = {
    "name": (_("name"), lambda info: _folded(info.key if info.name is None else info.name)),
    "held_since": (_("held for"), lambda info: info.acquired_at and -info.acquired_at.timestamp()),
    "waiters": (_("waiters (at least)"), lambda info: info.waiters),
    "holder": (_("holder"), lambda info: _folded(info.holder)),
    "backend": (_("backend"), lambda info: info.backend),
    "mode": (_("mode"), lambda info: info.shared),
    "ttl_left": (_("TTL left"), lambda info: info.expires_at),
    "fence": (_("fence"), None),
}


def _is_older(info: LockInfo, seconds: str, now: datetime) -> bool:
    return info.acquired_at is not None and now - info.acquired_at > timedelta(seconds=int(seconds))


# Filters: the parameter, the title, the values with their labels, and whether a lock fits a value.
FILTERS: dict[str, tuple[Any, dict[str, Any], Callable[[LockInfo, str, datetime], bool]]] = {
    "mode": (
        _("mode"),
        {"exclusive": _("exclusive"), "shared": _("shared")},
        lambda info, value, now: info.shared == (value == "shared"),
    ),
    "waiters": (
        _("waiters"),
        {"yes": _("with waiters"), "no": _("no known waiters")},
        lambda info, value, now: bool(info.waiters) == (value == "yes"),
    ),
    "older": (
        _("age"),
        {
            "10": _("over 10 seconds"),
            "60": _("over 1 minute"),
            "600": _("over 10 minutes"),
            "3600": _("over 1 hour"),
        },
        _is_older,
    ),
    "kind": (
        _("kind"),
        {"named": _("named lock"), "relation": _("table"), "row": _("row lock")},
        lambda info, value, now: kind_of(info) == value,
    ),
}


def selected(infos: Iterable[LockInfo], params: QueryDict, now: datetime) -> list[LockInfo]:
    """The locks that the search and the filters of an address choose."""
    part = params.get("q", "").strip().casefold()
    chosen = [
        (fits, value) for name, (_title, labels, fits) in FILTERS.items() if (value := params.get(name, "")) in labels
    ]
    return [
        info
        for info in infos
        if (not part or part in (info.name or "").casefold() or part in info.key.casefold())
        and all(fits(info, value, now) for fits, value in chosen)
    ]


def ordered(infos: Iterable[LockInfo], order: Iterable[str]) -> list[LockInfo]:
    """Sorted by columns, the first counts most. A minus reverses the order, but unknown values are last in both; those
    that are equal are sorted by engine and key."""
    found = sorted(infos, key=lambda info: (info.backend, info.key))
    for column in reversed([*order]):
        value_of = COLUMNS[column.removeprefix("-")][1]
        assert value_of is not None  # noqa: S101 - only these are in an order
        known = [info for info in found if value_of(info) is not None]
        unknown = [info for info in found if value_of(info) is None]
        found = sorted(known, key=value_of, reverse=column.startswith("-")) + unknown
    return found


class LockList:
    """The held locks that the address asks for. The engines are asked once, at the beginning."""

    def __init__(self, params: QueryDict) -> None:
        self.params, self._aliases = params, registry.aliases()
        self.using = using if (using := params.get("using")) in self._aliases else None
        self.order = self._order(params.get("o", "")) or DEFAULT_ORDER
        reports = {report.alias: report for report in held_locks(self.using)}
        infos = [info for report in reports.values() for info in report.locks]
        now = timezone.now()
        found = ordered(selected(infos, params, now), (*self.order, "name"))
        self.total = len(infos)
        self.unanswered = [report for report in reports.values() if report.error is not None]
        # a page that no longer exists, because locks were released, is the last one
        self.page = Paginator(found, PER_PAGE).get_page(params.get("p", "1"))
        self.rows = [row_of(info, reports[info.backend], now) for info in self.page]

    @staticmethod
    def _order(text: str) -> tuple[str, ...]:
        """The columns to sort by, each once."""
        found: dict[str, str] = {}
        for part in text.split("."):
            column = part.removeprefix("-")
            if COLUMNS.get(column, ("", None))[1] is not None:
                found.setdefault(column, part)
        return tuple(found.values())

    def _link(self, **changes: str | None) -> str:
        """The address with other parameters, on its first page; None leaves one out."""
        params = self.params.copy()
        for name, value in {"p": None, **changes}.items():
            params.pop(name, None)
            if value is not None:
                params[name] = value
        return f"?{params.urlencode()}"

    def columns(self) -> Iterator[dict[str, Any]]:
        """The headings. ``sorted`` is "ascending" or "descending" if the list is sorted by it first, "none" if it can
        be, and empty if it cannot. A click sorts by the column first, and a second one the other way round."""
        for name, (title, value_of) in COLUMNS.items():
            column = {"name": name, "title": title, "sorted": "", "link": ""}
            if value_of is not None:
                up, down = (self.order[0] == f"{sign}{name}" for sign in ("", "-"))
                others = [each for each in self.order if each.removeprefix("-") != name]
                column["sorted"] = "ascending" if up else "descending" if down else "none"
                column["link"] = self._link(o=".".join([f"-{name}" if up else name, *others]))
            yield column

    def filters(self) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
        """Each filter with its choices; that of the backend if there are several."""
        if len(self._aliases) > 1:
            yield _("backend"), self._choices("using", {alias: alias for alias in self._aliases})
        for parameter, (title, labels, _fits) in FILTERS.items():
            yield title, self._choices(parameter, labels)

    def _choices(self, parameter: str, labels: dict[str, Any]) -> list[dict[str, Any]]:
        chosen = value if (value := self.params.get(parameter, "")) in labels else ""
        return [
            {"label": label, "selected": value == chosen, "link": self._link(**{parameter: value or None})}
            for value, label in {"": _("All"), **labels}.items()
        ]

    def pages(self) -> Iterator[tuple[int | str, str]]:
        """The numbers of pages with their links; the ellipsis between them has none."""
        paginator = self.page.paginator
        if paginator.num_pages > 1:
            for number in paginator.get_elided_page_range(self.page.number):
                yield number, self._link(p=str(number)) if isinstance(number, int) else ""

    @property
    def kept(self) -> list[tuple[str, str]]:
        """The parameters that a new search leaves as they are."""
        return [(name, str(value)) for name, value in self.params.items() if name not in ("q", "p")]
