"""Django's own changelist over held locks: its templates, its sorting, its pagination, its filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.utils.translation import gettext as _

from .rows import SORTS

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .rows import Rows

OLDEST_FIRST = "-lock__age"


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
            rows = rows.search(self.query)
        return rows.order_by(*self._ordering())

    def _get_default_ordering(self) -> list[str]:
        """Not an attribute of the ModelAdmin, because the admin's checks look for a field of that name."""
        return [OLDEST_FIRST]

    def _ordering(self) -> list[str]:
        """What ChangeList.get_ordering makes of the address, without fields of a table; then by name."""
        found = []
        for part in str(self.params.get(ORDER_VAR, "")).split("."):
            index = part.removeprefix("-")
            if index.isdecimal() and int(index) < len(self.list_display):
                field = self.get_ordering_field(self.list_display[int(index)])
                if field in SORTS:
                    found.append(f"-{field}" if part.startswith("-") else str(field))
        return [*(found or self._get_default_ordering()), "lock__name"]

    @property
    def unanswered(self) -> list[Any]:
        """Reports of aliases that do not answer; only of the one that is filtered for."""
        rows: Rows = self.root_queryset  # type: ignore[assignment]
        chosen = self.params.get("using")
        return [report for report in rows.errors if chosen not in rows.aliases or report.alias == chosen]
