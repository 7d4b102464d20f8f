"""Django's changelist over held locks, and the filters at its side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_distlock.operations.lookup import aliases

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .rows import LockRows

# The columns are sorted by fields of LockQuery, except that it has no age.
AGE = {"age": "-since", "-age": "since"}
# Databases count up to 2^63: a higher page number in the address would be an error.
MOST_PAGES = 10**9


class AliasFilter(admin.SimpleListFilter):
    title = _("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        every = aliases()
        return [(alias, alias) for alias in every] if len(every) > 1 else []

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        chosen = self.value()
        return queryset.of(chosen) if chosen in dict(self.lookup_choices) else queryset


class RowFilter(admin.SimpleListFilter):
    """A choice of values, each with its label and the field of LockQuery that it sets."""

    values: tuple[tuple[str, Any, dict[str, Any]], ...]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, label) for value, label, _wanted in self.values]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        wanted = {value: fields for value, _label, fields in self.values}
        return queryset.having(**wanted.get(self.value() or "", {}))


class ModeFilter(RowFilter):
    title, parameter_name = _("mode"), "mode"
    values = (("exclusive", _("exclusive"), {"shared": False}), ("shared", _("shared"), {"shared": True}))


class WaitersFilter(RowFilter):
    title, parameter_name = _("waiters"), "waiters"
    values = (("yes", _("with waiters"), {"awaited": True}), ("no", _("no known waiters"), {"awaited": False}))


class AgeFilter(RowFilter):
    title, parameter_name = _("age"), "older"
    values = (
        ("10", _("over 10 seconds"), {"older": 10.0}),
        ("60", _("over 1 minute"), {"older": 60.0}),
        ("600", _("over 10 minutes"), {"older": 600.0}),
        ("3600", _("over 1 hour"), {"older": 3600.0}),
    )


class KindFilter(RowFilter):
    title, parameter_name = _("kind"), "kind"
    values = (
        ("named", _("named lock"), {"kind": "named"}),
        ("table", _("table"), {"kind": "relation"}),
        ("row", _("row lock"), {"kind": "row"}),
    )


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
        return self._cut(rows.having(order=self._order()))

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
        super().get_results(request)
        rows = self.queryset
        self.full_result_count = rows.total  # counted by the same query
        self.show_admin_actions = bool(rows.total)
        # the locks of the other aliases were not counted
        self.show_full_result_count = self.params.get("using") not in aliases()

    def _get_default_ordering(self) -> list[str]:
        """Oldest first. As an attribute of the ModelAdmin, the admin's checks would look for a field of that name."""
        return ["-age"]

    def _order(self) -> tuple[str, ...]:
        """As ChangeList.get_ordering, without fields of a table; then by name."""
        columns = {str(index): self.get_ordering_field(name) for index, name in enumerate(self.list_display)}
        found: dict[str, str] = {}
        for part in str(self.params.get(ORDER_VAR, "")).split("."):
            if field := columns.get(part.removeprefix("-")):
                found.setdefault(str(field), f"-{field}" if part.startswith("-") else str(field))
        return tuple(AGE.get(field, field) for field in [*(found.values() or self._get_default_ordering()), "name"])

    @property
    def unanswered(self) -> list[Any]:
        """The reports of aliases that do not answer, if they pass the filter."""
        rows: Any = self.queryset
        return list(rows.errors)
