"""The version of an object: what a form has shown, as a digest of values that were read from the database.

Both sides, the one of the rendered form and the one at the save, are computed from instances that were read just
before. An instance that was saved or bound holds other values for the same row: ``Decimal("1.0")``, ``F()``, another
order of keys.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db import models
    from django.db.models import QuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """Rows that a form edits with the object: those of ``model`` (its label) whose ``fk`` is the object."""

    model: str
    fk: str
    fields: tuple[str, ...] | None = None

    def rows(self, parent: models.Model, database: str) -> QuerySet[Any]:
        """The rows of ``parent``, in the order of their primary keys."""
        found: QuerySet[Any] = apps.get_model(self.model)._base_manager.using(database)
        return found.filter(**{self.fk: parent}).order_by("pk")  # the key may point to another field than "pk"


def version_field_of(model: type[models.Model]) -> str | None:
    """The name of the model's version field, if it has one.

    It is named by the model's attribute ``edit_version_field``, or is the field of django-concurrency.
    """
    named = getattr(model, "edit_version_field", None)
    if named is not None:
        return str(named)
    concurrency = getattr(model, "_concurrencymeta", None)
    field = getattr(concurrency, "field", None)
    return None if field is None else str(field.name)


def version_of(
    obj: models.Model,
    fields: Iterable[str] | None = None,
    inlines: Mapping[Inline, Sequence[models.Model]] | None = None,
) -> str:
    """The version of an instance as it was read from the database, with its inline rows.

    ``fields`` are names of fields; None is all of them. What is not a column (many-to-many) is left out, and the name
    of a file stands for its contents: a save under the lock counts those writes.
    """
    parts: list[Any] = [_values(obj, fields)]
    for inline, rows in (inlines or {}).items():
        parts.append([inline.model, inline.fk, [[str(row.pk), _values(row, inline.fields)] for row in rows]])
    packed = json.dumps(parts, separators=(",", ":"), sort_keys=True, default=str)
    return f"1.{hashlib.sha256(packed.encode()).hexdigest()[:40]}"


def _values(obj: models.Model, fields: Iterable[str] | None) -> list[list[Any]]:
    """The columns among ``fields``, by name; None is every one."""
    columns = {field.name: field for field in obj._meta.concrete_fields}
    names = set(columns) if fields is None else columns.keys() & fields
    return [[name, _plain(columns[name], obj)] for name in sorted(names)]


def _plain(field: models.Field[Any, Any], obj: models.Model) -> Any:
    """The value of a field as Django writes it into a fixture: a text, or what JSON can have."""
    value = field.value_from_object(obj)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()  # a form has it in the time zone of the visitor
    return None if value is None else field.value_to_string(obj)
