"""What to do about a table or alias that a block uses and has not locked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.apps import apps

from django_distlock.exceptions import LockNotHeld

if TYPE_CHECKING:
    from .tables import Model

# ER_TABLE_NOT_LOCKED, ER_TABLE_NOT_LOCKED_FOR_WRITE
UNNAMED, READ_ONLY = 1100, 1099
NOT_LOCKED = frozenset({UNNAMED, READ_ONLY})
QUOTED = re.compile(r"'(.*)' was ", re.DOTALL)


def not_locked(error: Exception, sql: str) -> LockNotHeld:
    """The server names what the query calls the table; the query says which table that is, and Django which model."""
    match = QUOTED.search(str(error.args[-1]))
    name = match[1] if match else "?"
    if error.args[0] == READ_ONLY:
        model = model_of(name)
        what = model.__name__ if model else "its model"
        return LockNotHeld(f"The table {name!r} is locked for reading only: name {what} in write=[...].")
    table = table_behind(name, sql)
    if table is None:
        return LockNotHeld(f"The table {name!r} is used inside table_lock and not locked: {_add_model(name)}.")
    model = model_of(table)
    what = model.__name__ if model else f"<the model of {table}>"
    return LockNotHeld(
        f"The alias {name!r} of the table {table!r} is used inside table_lock and not locked: add "
        f"aliases={{{what}: [{name!r}]}}{'' if model else ' and the model itself'}."
    )


def table_behind(alias: str, sql: str) -> str | None:
    """The table that ``sql`` calls ``alias``; None if that is a table's own name."""
    found = re.search(rf"`((?:[^`]|``)+)`\s+(?:AS\s+)?`?{re.escape(alias)}`?(?![\w`.])", sql, re.IGNORECASE)
    if found is None or found[1] == alias:
        return None
    return found[1]


def model_of(table: str) -> Model | None:
    for model in apps.get_models(include_auto_created=True):
        if model._meta.db_table.strip("`") == table and not model._meta.proxy:
            return model
    return None


def _add_model(table: str) -> str:
    model = model_of(table)
    if model is None:
        return "name its model in table_lock(...)"
    if not model._meta.auto_created:
        return f"name {model.__name__} in table_lock(...)"
    owner: Any = model._meta.auto_created
    for field in owner._meta.local_many_to_many:
        if field.remote_field.through is model:
            return f"name {owner.__name__}.{field.name}.through in table_lock(...)"
    return f"name the model of {table!r} in table_lock(...)"
