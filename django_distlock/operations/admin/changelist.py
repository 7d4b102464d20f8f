"""Django's own changelist over held locks: its templates, its sorting, its pagination, its filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.utils.translation import gettext as _

from django_distlock.operations.lookup import aliases

from .rows import SORTS, sorts

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .rows import Rows

OLDEST_FIRST = "-lock__age"
# What is beyond is no page: engines count up to 2^63.
MOST_PAGES = 10**9


class HeldLockChangeList(ChangeList):
    """The list of all held locks that pass the filters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = _("Held locks")

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        self.filter_specs, self.has_filters, left, _many, self.has_active_filters = self.get_filters(request)
        if left:  # a field of the model: it has no values here
            raise IncorrectLookupParameters
        rows: Any = self.root_queryset
        for spec in self.filter_specs:
            rows = spec.queryset(request, rows)
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        if self.query:
            rows = rows.having(text=self.query)
        return self._cut(rows.having(order=sorts(self._ordering())))

    def _cut(self, rows: Rows) -> Rows:
        first = self.list_per_page * (max(1, min(self.page_num, MOST_PAGES)) - 1)
        return rows.having(start=first, stop=first + self.list_per_page)

    def get_results(self, request: HttpRequest) -> None:
        """Locks go while the page is open: instead of one beyond the last it is the last, with its filters and with the
        action that was asked for there."""
        rows: Any = self.queryset
        last = max(1, -(-rows.count() // self.list_per_page))
        if not 1 <= self.page_num <= last:
            self.page_num = min(max(1, self.page_num), last)
            self.queryset = self._cut(rows)
        root: Any = self.root_queryset
        self.root_queryset = _All(self.queryset)  # type: ignore[assignment]
        super().get_results(request)
        self.root_queryset = root
        # of the others nobody has asked how many they have
        self.show_full_result_count = self.params.get("using") not in aliases()

    def _get_default_ordering(self) -> list[str]:
        """Not an attribute of the ModelAdmin, because the admin's checks look for a field of that name."""
        return [OLDEST_FIRST]

    def _ordering(self) -> list[str]:
        """What ChangeList.get_ordering makes of the address, without fields of a table; then by name."""
        columns = {str(index): self.get_ordering_field(name) for index, name in enumerate(self.list_display)}
        found: dict[str, str] = {}
        for part in str(self.params.get(ORDER_VAR, "")).split("."):
            field = str(columns.get(part.removeprefix("-")))
            if field in SORTS:
                found.setdefault(field, f"-{field}" if part.startswith("-") else field)
        return [*(found.values() or self._get_default_ordering()), "lock__name"]

    @property
    def unanswered(self) -> list[Any]:
        """Reports of aliases that do not answer; only of the one that is filtered for."""
        rows: Any = self.queryset
        return list(rows.errors)


class _All:
    """All that there are: their number is known with that of those that match."""

    def __init__(self, rows: Any) -> None:
        self._rows: Rows = rows

    def count(self) -> int:
        return self._rows.total
