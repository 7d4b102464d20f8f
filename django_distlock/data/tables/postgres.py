"""LOCK TABLE of PostgreSQL: https://www.postgresql.org/docs/current/sql-lock.html"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_distlock.concurrency import clock
from django_distlock.data.errors import lock_errors
from django_distlock.data.timeouts import run, wait_limit
from django_distlock.manager.isolation import warn_of_stale_snapshot
from django_distlock.manager.open_transactions import in_transaction

from .modes import described

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from .modes import Table

IDLE = 0  # libpq's PQTRANS_IDLE: atomic() has begun, BEGIN is not sent yet


def lock(stack: ExitStack, connection: Any, tables: Sequence[Table], timeout: float | None) -> None:
    """Lock in the caller's transaction, to its end; without one the block is a transaction.

    One statement for consecutive tables in the same mode: all callers lock tables in the same order. Without ONLY, so
    that partitions and descendants of a table, which writers may name, are locked with it.
    """
    if not in_transaction(connection):
        stack.enter_context(transaction.atomic(using=connection.alias))
    elif getattr(getattr(connection.connection, "info", None), "transaction_status", None) != IDLE:
        # the first statement would be fine: LOCK TABLE takes no snapshot
        warn_of_stale_snapshot(described(tables), [connection])
    until = None if timeout is None else clock.now() + timeout
    with lock_errors(connection, described(tables), timeout):
        for mode, group in groupby(tables, key=lambda table: table.mode):
            sql = f"LOCK TABLE {', '.join(table.name for table in group)} IN {mode.upper()} MODE"
            if timeout == 0:
                run(connection, f"{sql} NOWAIT")
                continue
            with wait_limit(connection, None if until is None else until - clock.now()):
                run(connection, sql)
