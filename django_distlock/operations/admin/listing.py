"""The list of held locks for one request: what its address asks for, and the links that ask for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.paginator import Paginator
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_distlock.manager.introspection import held_locks
from django_distlock.operations.lookup import aliases
from django_distlock.operations.query import LockQuery

from .rows import LockRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import QueryDict

PER_PAGE = 100
# The oldest first.
DEFAULT_ORDER = ("-age",)
# Columns: the name in the address and of the field of LockQuery.order (None: it is not sorted by it), and the heading.
# Most important columns first: narrow screens cut off the rest.
COLUMNS: tuple[tuple[str, str | None, Any], ...] = (
    ("name", "name", _("name")),
    ("held_since", "age", _("held for")),
    ("waiters", "waiters", _("waiters (at least)")),
    ("holder", "holder", _("holder")),
    ("backend", "backend", _("backend")),
    ("mode", "mode", _("mode")),
    ("ttl_left", "expiry", _("TTL left")),
    ("fence", None, _("fence")),
)
# Filters: the parameter, the title, and for each value its label and the condition of LockQuery.
FILTERS: tuple[tuple[str, Any, dict[str, tuple[Any, dict[str, Any]]]], ...] = (
    (
        "mode",
        _("mode"),
        {"exclusive": (_("exclusive"), {"shared": False}), "shared": (_("shared"), {"shared": True})},
    ),
    (
        "waiters",
        _("waiters"),
        {"yes": (_("with waiters"), {"awaited": True}), "no": (_("no known waiters"), {"awaited": False})},
    ),
    (
        "older",
        _("age"),
        {
            "10": (_("over 10 seconds"), {"older": 10.0}),
            "60": (_("over 1 minute"), {"older": 60.0}),
            "600": (_("over 10 minutes"), {"older": 600.0}),
            "3600": (_("over 1 hour"), {"older": 3600.0}),
        },
    ),
    (
        "kind",
        _("kind"),
        {
            "named": (_("named lock"), {"kind": "named"}),
            "table": (_("table"), {"kind": "relation"}),
            "row": (_("row lock"), {"kind": "row"}),
        },
    ),
)


class Choice(NamedTuple):
    """One value of a filter."""

    label: Any
    selected: bool
    link: str


class Column(NamedTuple):
    """A column's heading. ``sorted`` is "ascending" or "descending" if the list is sorted by it first, "none" if it can
    be, and empty if it cannot."""

    name: str
    title: Any
    sorted: str
    link: str


class LockList:
    """The held locks that the address asks for. The engines are asked once, at the beginning."""

    def __init__(self, params: QueryDict) -> None:
        self.params = params
        self.text = params.get("q", "").strip()
        self._aliases = aliases()
        self.using = using if (using := params.get("using")) in self._aliases else None
        self.order = self._order(params.get("o", "")) or DEFAULT_ORDER
        conditions: dict[str, Any] = {}
        for parameter, _title, values in FILTERS:
            conditions |= values.get(params.get(parameter, ""), (None, {}))[1]
        query = LockQuery(text=self.text, order=(*self.order, "name"), **conditions)
        reports = {report.alias: report for report in held_locks(self.using)}
        infos = [info for report in reports.values() for info in report.locks]
        now = timezone.now()
        found = query.select(infos, now)
        self.total = len(infos)
        self.unanswered = [report for report in reports.values() if report.error is not None]
        # a page that no longer exists, because locks were released, is the last one
        self.page = Paginator(found, PER_PAGE).get_page(params.get("p", "1"))
        self.rows = [LockRow(info, reports[info.backend], now) for info in self.page]

    @staticmethod
    def _order(text: str) -> tuple[str, ...]:
        """The columns to sort by, each once."""
        known = {field for _name, field, _title in COLUMNS if field}
        found: dict[str, str] = {}
        for part in text.split("."):
            if (field := part.removeprefix("-")) in known:
                found.setdefault(field, part)
        return tuple(found.values())

    def _link(self, **changes: str | None) -> str:
        """The address with other parameters, on its first page; None leaves one out."""
        params = self.params.copy()
        for name, value in {"p": None, **changes}.items():
            params.pop(name, None)
            if value is not None:
                params[name] = value
        return f"?{params.urlencode()}"

    def columns(self) -> Iterator[Column]:
        """A click sorts by the column first, and a second one the other way round."""
        for name, field, title in COLUMNS:
            if field is None:
                yield Column(name, title, "", "")
                continue
            up = self.order[0] == field
            first = up or self.order[0] == f"-{field}"
            others = [each for each in self.order if each.removeprefix("-") != field]
            link = self._link(o=".".join([f"-{field}" if up else field, *others]))
            yield Column(name, title, "none" if not first else "ascending" if up else "descending", link)

    def filters(self) -> Iterator[tuple[Any, list[Choice]]]:
        """Each filter with its choices; that of the backend if there are several."""
        if len(self._aliases) > 1:
            yield _("backend"), list(self._choices("using", dict(zip(self._aliases, self._aliases, strict=True))))
        for parameter, title, values in FILTERS:
            yield title, list(self._choices(parameter, {value: label for value, (label, _) in values.items()}))

    def _choices(self, parameter: str, values: dict[str, Any]) -> Iterator[Choice]:
        chosen = self.params.get(parameter, "")
        yield Choice(_("All"), chosen not in values, self._link(**{parameter: None}))
        for value, label in values.items():
            yield Choice(label, value == chosen, self._link(**{parameter: value}))

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
