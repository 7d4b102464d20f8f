"""What to do about a table or alias that a block uses and has not locked."""

from __future__ import annotations

import re
from typing import Any

from django.apps import apps

from django_distlock.exceptions import LockNotHeld

# ER_TABLE_NOT_LOCKED, ER_TABLE_NOT_LOCKED_FOR_WRITE
UNNAMED, READ_ONLY = 1100, 1099
NOT_LOCKED = frozenset({UNNAMED, READ_ONLY})
QUOTED = re.compile(r"'(.*)' was ", re.DOTALL)


def not_locked(error: Exception, sql: str) -> LockNotHeld:
    """The server names what the query calls the table; the query says which table that is, and Django which model."""
    match = QUOTED.search(str(error.args[-1]))
    name = match[1] if match else "?"
    if error.args[0] == READ_ONLY:
        return LockNotHeld(
            f"The table {name!r} is locked for reading only, by table_lock or by the server for a foreign key: name "
            f"{model_named(name)} in write=[...]."
        )
    table = table_behind(name, sql)
    if table is None:
        return LockNotHeld(
            f"The table {name!r} is used inside table_lock and not locked: name {model_named(name)} in table_lock(...)."
        )
    return LockNotHeld(
        f"The alias {name!r} of the table {table!r} is used inside table_lock and not locked: add "
        f"aliases={{{model_named(table)}: [{name!r}]}}, and the model if it is not named yet."
    )


def table_behind(alias: str, sql: str) -> str | None:
    """The table that ``sql`` calls ``alias``; None if that is a table's own name."""
    found = re.search(rf"`((?:[^`]|``)+)`\s+(?:AS\s+)?`?{re.escape(alias)}`?(?![\w`.])", sql, re.IGNORECASE)
    if found is None or found[1] == alias:
        return None
    return found[1]


def model_named(table: str) -> str:
    """How the code of the user names the model of a table."""
    for model in apps.get_models(include_auto_created=True):
        if model._meta.proxy or model._meta.db_table.strip("`") != table:
            continue
        owner: Any = model._meta.auto_created
        fields = owner._meta.local_many_to_many if owner else ()
        names = [f"{owner.__name__}.{field.name}.through" for field in fields if field.remote_field.through is model]
        return names[0] if names else model.__name__
    return "its model"
