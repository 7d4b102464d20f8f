"""Posted rows of an inline formset whose objects were deleted meanwhile: their text becomes new rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from django.http import QueryDict

# Not a row of this formset, but of one whose prefix begins with the same text: "lines-2" beside "lines".
_OTHERS = r"(?!\d+-|__prefix__-|(?:TOTAL|INITIAL|MIN_NUM|MAX_NUM)_FORMS$)"


def keep_rows(kind: Any, params: dict[str, Any]) -> bool:
    """Change ``data`` and ``queryset`` of a formset so that it fits the rows of now. True if it has new ones from gone.

    Django takes the posted rows for those of the database, by their number: with one of these gone its row is never
    valid, and the admin leaves out the last row. A row that was to be deleted is not made anew.
    """
    posted = kind(**params)
    if not posted.management_form.is_valid():
        return False
    data, prefix, pk = params["data"], params["prefix"], kind.model._meta.pk
    stored = {str(row.pk): row.pk for row in posted.get_queryset()}
    total = posted.total_form_count()
    first = min(posted.initial_form_count(), total)
    kept = [index for index in range(first) if data.get(f"{prefix}-{index}-{pk.name}") in stored]
    gone = [index for index in range(first) if index not in kept and f"{prefix}-{index}-DELETE" not in data]
    if params.get("queryset") is not None:
        params["queryset"] = params["queryset"].filter(
            pk__in=[stored[data[f"{prefix}-{index}-{pk.name}"]] for index in kept]
        )
    if len(kept) == first:
        return False
    rows = _rows(data, prefix)
    for name in [f"{prefix}-{index}-{name}" for index, row in rows.items() for name in row]:
        del data[name]
    for index in gone:
        if pk.name not in kind.form.base_fields:  # else it is typed, and stays
            rows.get(index, {}).pop(pk.name, None)
    order = [*kept, *range(first, total), *gone]
    for place, index in enumerate(order):
        for name, values in rows.get(index, {}).items():
            data.setlist(f"{prefix}-{place}-{name}", values)
    data[f"{prefix}-TOTAL_FORMS"], data[f"{prefix}-INITIAL_FORMS"] = str(len(order)), str(len(kept))
    return bool(gone)


def new_rows_text() -> str:
    return _(
        "What was deleted meanwhile is at the end of its list, as a new row. Remove the row if you do not want to save "
        "it again."
    )


def _rows(data: QueryDict, prefix: str) -> dict[int, dict[str, list[str]]]:
    """The fields of each row."""
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{1,6}})-({_OTHERS}.+)", re.DOTALL)
    rows: dict[int, dict[str, list[str]]] = {}
    for name, values in data.lists():
        if (match := pattern.fullmatch(name)) is not None:
            rows.setdefault(int(match[1]), {})[match[2]] = list(values)
    return rows
