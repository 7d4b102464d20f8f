"""Translates errors of locking statements into DistlockErrors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import Error, InterfaceError, NotSupportedError
from django.db.transaction import TransactionManagementError

from django_distlock.exceptions import (
    BackendUnavailable,
    DeadlockDetected,
    DistlockError,
    LockNotAcquired,
    LockTimeout,
    UnsupportedOperation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

Code = str | int | None

# PostgreSQL's SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html; the numbers of MySQL, from
# https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html, and of MariaDB where it has its own; the
# names of SQLite, https://sqlite.org/rescode.html
# lock_timeout and NOWAIT, a cancelled statement (statement_timeout); lock wait timeout, KILL QUERY, MariaDB's
# max_statement_time, MySQL's max_execution_time and NOWAIT
BUSY = frozenset({"55P03", "57014", 1205, 1317, 1969, 3024, 3572, "SQLITE_BUSY", "SQLITE_LOCKED"})
DEADLOCK = frozenset({"40P01", 1213, 3058})
# a row, or SQLite's database, was changed after the snapshot of the transaction
STALE = frozenset({"40001", 1020, "SQLITE_BUSY_SNAPSHOT"})
# MySQL's lock wait timeout ends the statement only: the transaction has to be rolled back and run again.
WAITED_TOO_LONG = 1205
# the connection, the session or the server is gone or refuses to talk
GONE = frozenset({1040, 1053, 1152, 1927, 2002, 2003, 2006, 2013, 2055, 4031, "SQLITE_IOERR", "SQLITE_CANTOPEN"})


@contextmanager
def lock_errors(connection: BaseDatabaseWrapper, what: str, timeout: float | None) -> Iterator[None]:
    """Raise a DistlockError for a database error of the locking statement inside, which becomes its cause.

    ``what`` begins the message ("The table x"). A busy lock is LockNotAcquired with ``timeout`` 0, else LockTimeout.
    The enclosing ``atomic()`` is marked for rollback on every engine, because PostgreSQL has aborted the transaction.
    """
    try:
        yield
    except TransactionManagementError:  # raised by Django, with a clear message
        raise
    except Error as error:
        if connection.in_atomic_block:
            connection.needs_rollback = True
            connection.rollback_exc = error  # type: ignore[attr-defined]
        raise translate(connection, error, what, timeout) from error


def code_of(error: BaseException) -> Code:
    """The engine's code of an error of Django or of a driver: SQLSTATE, MySQL's number, SQLite's name."""
    driver = error.__cause__ if isinstance(error, Error) and error.__cause__ is not None else error
    for attribute in ("sqlstate", "pgcode", "sqlite_errorname"):  # psycopg 3, psycopg2, sqlite3
        code: Code = getattr(driver, attribute, None)
        if code is not None:
            return code
    first = driver.args[0] if driver.args else None
    return first if isinstance(first, int) else None


def may_succeed_again(error: BaseException) -> bool:
    """Has the database ended the transaction for the sake of another one, so that it may be run again?"""
    if isinstance(error, DistlockError):
        cause = error.__cause__
        return isinstance(error, DeadlockDetected) or (isinstance(cause, Error) and code_of(cause) in STALE)
    return isinstance(error, Error) and code_of(error) in DEADLOCK | STALE | {WAITED_TOO_LONG}


def translate(connection: BaseDatabaseWrapper, error: Error, what: str, timeout: float | None) -> DistlockError:
    """The DistlockError for an ``error`` of a locking statement."""
    code = code_of(error)
    if connection.vendor == "sqlite" and code not in STALE:
        code = "_".join(str(code).split("_")[:2])  # SQLITE_IOERR_READ is a SQLITE_IOERR
    if code in BUSY:
        if timeout == 0:
            return LockNotAcquired(f"{what} is locked by another session.")
        after = "at the end of the database's own timeout" if timeout is None else f"after {timeout:g} s"
        return LockTimeout(f"{what} was still locked by another session {after}.")
    if code in DEADLOCK:
        return DeadlockDetected(f"{what} could not be locked: waiting would have closed a circle of waiters.")
    if code in STALE:
        return LockNotAcquired(
            f"{what} could not be locked: another transaction has written since this transaction first read. Take the "
            "lock before the first query of the transaction, or run the transaction again."
        )
    if isinstance(error, NotSupportedError):
        return UnsupportedOperation(f"{what} could not be locked: {error}")
    if _gone(connection, error, code):
        return BackendUnavailable(f"{what} could not be locked, because the database did not answer: {error}")
    return DistlockError(f"{what} could not be locked: {error}")


def _gone(connection: BaseDatabaseWrapper, error: Error, code: Code) -> bool:
    if connection.vendor == "postgresql" and not isinstance(error, InterfaceError):
        # without a SQLSTATE it is an error of the client: the server did not answer
        return code is None or str(code).startswith(("08", "57P"))
    return isinstance(error, InterfaceError) or code in GONE
