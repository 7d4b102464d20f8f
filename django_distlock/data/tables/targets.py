"""The tables of a table lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import models

from .modes import POSTGRES, TableLockMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

Model = type[models.Model]

# The ORM's aliases of a table that a query uses twice (T) or in a subquery (U, and V in a subquery of that):
# django.db.models.sql.query.Query.table_alias and bump_prefix.
ORM_ALIASES = ("T2", "T3", "T4", "T5", "U0", "U1", "U2", "U3", "V0", "V1")
_ORDER = list(TableLockMode)


@dataclass(slots=True)
class Table:
    """A table: its quoted name, its mode, and the aliases that queries may use."""

    name: str
    mode: TableLockMode
    aliases: tuple[str, ...] = ()


def tables_of(
    connection: BaseDatabaseWrapper, wanted: Mapping[Model, TableLockMode], aliases: Mapping[Model, Sequence[str]]
) -> list[Table]:
    """The tables of the models and of their parents by multi-table inheritance, each once. All callers get the same
    order, so that no two can wait for each other (R9)."""
    found: dict[str, Table] = {}
    for model, mode in wanted.items():
        for part in (model, *model._meta.concrete_model._meta.get_parent_list()):  # type: ignore[union-attr]
            name = table_name(connection, part)
            known = found.setdefault(name, Table(name, mode))
            known.mode = _both(known.mode, mode)
    taken: set[str] = set()
    for model, names in aliases.items():
        name = table_name(connection, model)
        if name not in found:
            raise ValueError(f"aliases: {model.__name__} is not among the models that are locked.")
        found[name].aliases += tuple(names)
        taken |= set(names)
    first = next(iter(found.values()))  # an alias belongs to one table
    first.aliases += tuple(alias for alias in ORM_ALIASES if alias not in taken)
    return [found[name] for name in sorted(found)]


def table_name(connection: BaseDatabaseWrapper, model: Model) -> str:
    """The quoted name of a model's table, with its schema if ``db_table`` has one."""
    return connection.ops.quote_name(model._meta.db_table)


def described(tables: Sequence[Table]) -> str:
    names = ", ".join(table.name for table in tables)
    return f"The table {names}" if len(tables) == 1 else f"The tables {names}"


def _both(one: TableLockMode, other: TableLockMode) -> TableLockMode:
    """The weakest mode that excludes what both exclude."""
    if one == other:
        return one
    weak, strong = sorted((POSTGRES[one], POSTGRES[other]), key=_ORDER.index)
    if strong is TableLockMode.SHARE and weak not in (TableLockMode.ACCESS_SHARE, TableLockMode.ROW_SHARE):
        return TableLockMode.SHARE_ROW_EXCLUSIVE
    return strong
