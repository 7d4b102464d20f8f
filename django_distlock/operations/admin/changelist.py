"""Django's changelist over held locks, and the filters at its side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_distlock.operations.lookup import aliases

from .rows import KINDS, SORTS, sorts

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .rows import LockRows

OLDEST_FIRST = "-lock__age"
# Databases count up to 2^63: a higher page number in the address would be an error.
MOST_PAGES = 10**9
# The values of a filter -> those of LockQuery.
KIND_OF = {shown: kind for kind, shown in KINDS.items()} | {"named": "named"}


class RowFilter(admin.SimpleListFilter):
    """A choice of values, each of which narrows the rows."""

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None or value not in {choice for choice, _label in self.lookup_choices}:
            return queryset
        return self.narrowed(queryset, value)


class AliasFilter(RowFilter):
    title = _("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        every = aliases()
        return [(alias, alias) for alias in every] if len(every) > 1 else []

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        return rows.of(value)


class ModeFilter(RowFilter):
    title = _("mode")
    parameter_name = "mode"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("exclusive", _("exclusive")), ("shared", _("shared"))]

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        return rows.having(shared=value == "shared")


class WaitersFilter(RowFilter):
    title = _("waiters")
    parameter_name = "waiters"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("with waiters")), ("no", _("no known waiters"))]

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        return rows.having(awaited=value == "yes")


class AgeFilter(RowFilter):
    title = _("age")
    parameter_name = "older"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("10", _("over 10 seconds")),
            ("60", _("over 1 minute")),
            ("600", _("over 10 minutes")),
            ("3600", _("over 1 hour")),
        ]

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        return rows.having(older=float(value))


class KindFilter(RowFilter):
    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("named", _("named lock")), ("table", _("table")), ("row", _("row lock"))]

    def narrowed(self, rows: LockRows, value: str) -> LockRows:
        return rows.having(kind=KIND_OF[value])


class HeldLockChangeList(ChangeList):
    """The held locks that pass the filters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = gettext("Held locks")

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        self.filter_specs, self.has_filters, left, _many, self.has_active_filters = self.get_filters(request)
        if left:  # a field of the model, which has no values
            raise IncorrectLookupParameters
        rows: Any = self.root_queryset
        for spec in self.filter_specs:
            rows = spec.queryset(request, rows)
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        if self.query:
            rows = rows.having(text=self.query)
        return self._cut(rows.having(order=sorts(self._ordering())))

    def _cut(self, rows: LockRows) -> LockRows:
        first = self.list_per_page * (max(1, min(self.page_num, MOST_PAGES)) - 1)
        return rows.having(start=first, stop=first + self.list_per_page)

    def get_results(self, request: HttpRequest) -> None:
        """Show the last page instead of one that no longer exists, because locks were released; its filters and the
        action that was chosen there still count."""
        rows: Any = self.queryset
        last = max(1, -(-rows.count() // self.list_per_page))
        if not 1 <= self.page_num <= last:
            self.page_num = min(max(1, self.page_num), last)
            self.queryset = self._cut(rows)
        root: Any = self.root_queryset
        self.root_queryset = _All(self.queryset)  # type: ignore[assignment]
        super().get_results(request)
        self.root_queryset = root
        # the locks of the other aliases were not counted
        self.show_full_result_count = self.params.get("using") not in aliases()

    def _get_default_ordering(self) -> list[str]:
        """Oldest first. As an attribute of the ModelAdmin, the admin's checks would look for a field of that name."""
        return [OLDEST_FIRST]

    def _ordering(self) -> list[str]:
        """As ChangeList.get_ordering, without fields of a table; then by name."""
        columns = {str(index): self.get_ordering_field(name) for index, name in enumerate(self.list_display)}
        found: dict[str, str] = {}
        for part in str(self.params.get(ORDER_VAR, "")).split("."):
            field = str(columns.get(part.removeprefix("-")))
            if field in SORTS:
                found.setdefault(field, f"-{field}" if part.startswith("-") else field)
        return [*(found.values() or self._get_default_ordering()), "lock__name"]

    @property
    def unanswered(self) -> list[Any]:
        """The reports of aliases that do not answer, if they pass the filter."""
        rows: Any = self.queryset
        return list(rows.errors)


class _All:
    """Stands for all rows, which the query of the matching rows has counted too."""

    def __init__(self, rows: Any) -> None:
        self._rows: LockRows = rows

    def count(self) -> int:
        return self._rows.total
