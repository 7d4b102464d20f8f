"""Transactions that begin with a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

if TYPE_CHECKING:
    from contextlib import ExitStack


def in_transaction(alias: str) -> bool:
    """Is there a transaction other than that of a TestCase?"""
    connection: Any = connections[alias]
    if not connection.in_atomic_block:
        # Django's question for the mode would connect, which async code must not
        is_open = connection.connection is not None
        return not (connection.autocommit if is_open else connection.settings_dict["AUTOCOMMIT"])
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def begin(stack: ExitStack, alias: str) -> None:
    """Begin a transaction; on SQLite with the write lock, which a transaction that has read gets too late."""
    connection: Any = connections[alias]
    if connection.vendor != "sqlite":
        stack.enter_context(transaction.atomic(using=alias))
        return
    connection.ensure_connection()  # sets the mode of the settings
    before, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
    try:
        stack.enter_context(transaction.atomic(using=alias))
    finally:
        connection.transaction_mode = before
