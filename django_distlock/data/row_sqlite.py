"""SQLite has no locks on rows: the write lock of the database stands for them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import transaction

from .errors import lock_errors
from .waits import wait_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model


@contextmanager
def write_lock(connection: Any, model: type[Model], timeout: float | None) -> Iterator[None]:
    atomic = transaction.atomic(using=connection.alias, savepoint=False)
    opens = not connection.in_atomic_block
    what = f"The database of {model._meta.label}"
    if opens:
        connection.ensure_connection()  # reads the mode from the settings
        mode = connection.transaction_mode
        with lock_errors(connection, what, timeout), wait_limit(connection, timeout):
            connection.transaction_mode = "IMMEDIATE"
            try:
                atomic.__enter__()
            finally:
                connection.transaction_mode = mode
    else:
        with lock_errors(connection, what, timeout), wait_limit(connection, timeout), connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)} WHERE 0")
        atomic.__enter__()


    try:
        yield
    except BaseException:
        atomic.__exit__(*sys.exc_info())
        raise
    else:
        atomic.__exit__(None, None, None)
