"""A table locked against everybody else, in each engine's own words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connection, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model


@contextmanager
def locked_table(model: type[Model]) -> Iterator[None]:
    """Run the block in a transaction that alone may use the model's table; what it wrote is committed before others.

    PostgreSQL: ACCESS EXCLUSIVE, which is what LOCK TABLE takes when no mode is named. It makes readers wait, as
    MySQL's WRITE lock does; SHARE ROW EXCLUSIVE would stop the race and let readers through.
    MySQL and MariaDB: LOCK TABLES commits an open transaction, so it comes first in one that must be the outermost,
    and UNLOCK TABLES after its commit or rollback.
    SQLite: the write lock of the whole database, taken by BEGIN IMMEDIATE (the settings' transaction_mode).
    """
    table = connection.ops.quote_name(model._meta.db_table)
    if connection.vendor == "mysql":
        try:
            with transaction.atomic(durable=True), connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLES {table} WRITE")
                yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("UNLOCK TABLES")
        return
    with transaction.atomic(durable=True):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
