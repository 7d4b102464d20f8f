"""How long a locking statement waits: the engine's timeout, set for that statement and restored exactly."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.db import Error

from django_distlock.manager.isolation import STALE_LEVELS, configured_level
from django_distlock.validation import UNSET, Timeout, flag, optional_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

# Seconds that a data lock waits by default: as with named locks, no web process waits for ever by accident.
DEFAULT_TIMEOUT = 10.0
# lock_timeout and busy_timeout are milliseconds in 31 bits: 24 days.
LONGEST_MS = 2**31 - 1
# MySQL's longest lock_wait_timeout, a year, and MariaDB's longest innodb_lock_wait_timeout; seconds.
LONGEST_WAIT, LONGEST_ROW_WAIT = 31_536_000, 100_000_000

PG_LIMITS = ("lock_timeout", "statement_timeout")

# A statement and its parameters.
Statement = tuple[str, Any]


def resolve(timeout: Timeout, **no_wait: bool) -> float | None:
    """Seconds to wait, None for ever; 0 with one of the flags ``no_wait``. ValueError or TypeError that names the
    argument."""
    given = optional_seconds("timeout", timeout, none=True)
    for argument, value in no_wait.items():
        if flag(argument, value):
            if given not in (UNSET, 0):
                raise ValueError(f"{argument} does not wait: timeout and {argument} exclude each other.")
            given = 0.0
    return DEFAULT_TIMEOUT if given is UNSET else given


def milliseconds(timeout: float | None, *, least: int = 0) -> int:
    """``timeout`` rounded up, at most what the engine can do; None is that."""
    if timeout is None:
        return LONGEST_MS
    return max(least, min(math.ceil(timeout * 1000), LONGEST_MS))


@contextmanager
def wait_limit(connection: BaseDatabaseWrapper, timeout: float | None, *, whole: bool = True) -> Iterator[None]:
    """End the statement inside with the engine's busy error after ``timeout`` seconds, and restore the settings.

    For one statement inside a transaction. On PostgreSQL and MariaDB the limit is on the whole statement, because
    their lock timeouts start again for each table or row. On MariaDB it is a part of the statement. Elsewhere it costs
    two statements; none on PostgreSQL for None, where lock_timeout of the server applies (by default for ever). After
    an error on PostgreSQL the rollback of the transaction or savepoint restores the settings. Oracle's MySQL has whole
    seconds, at least one.

    Without ``whole`` the limit is on the wait for tables only: for a statement that has work to do and does not wait
    for rows, by NOWAIT or SKIP LOCKED.
    """
    if getattr(connection, "mysql_is_mariadb", False):
        with connection.execute_wrapper(_mariadb(connection, timeout, whole)):
            yield
        return
    back = {"postgresql": _postgres, "mysql": _mysql, "sqlite": _sqlite}[connection.vendor](connection, timeout, whole)
    try:
        yield
    except BaseException:
        if back is not None and connection.vendor != "postgresql":
            with suppress(Error):  # the connection is gone, and its settings with it
                run(connection, *back)
        raise
    if back is not None:
        run(connection, *back)


def _postgres(connection: Any, timeout: float | None, whole: bool) -> Statement | None:
    """Set the limits; return the statement that restores them, because a local setting outlives its savepoint.

    Where one snapshot serves the whole transaction, by SHOW and SET: they take none, as LOCK TABLE takes none. That of
    a SELECT would be older than the lock.
    """
    if timeout is None:
        return None
    limit = str(milliseconds(timeout, least=1))  # 0 would be for ever
    names = PG_LIMITS if whole else PG_LIMITS[:1]
    change = ", ".join(f"set_config('{name}', %s, true)" for name in names)
    if configured_level(connection) in STALE_LEVELS:
        before: Any = [run(connection, f"SHOW {name}")[0][0] for name in names]
        for name in names:
            run(connection, f"SET LOCAL {name} = {limit}")
    else:
        current = ", ".join(f"current_setting('{name}')" for name in names)
        before = run(connection, f"SELECT {current}, {change}", [limit] * len(names))[0][: len(names)]
    return f"SELECT {change}", before


def _mysql(connection: Any, timeout: float | None, whole: bool) -> Statement:
    """The old values stay on the server, in variables of the session."""
    limits = mysql_limits(connection, timeout)
    keep = ", ".join(f"@distlock_{name} = @@SESSION.{name}" for name in limits)
    run(connection, f"SET {keep}, " + ", ".join(f"SESSION {name} = {value}" for name, value in limits.items()))
    return "SET " + ", ".join(f"SESSION {name} = @distlock_{name}" for name in limits), None


def _mariadb(connection: Any, timeout: float | None, whole: bool) -> Callable[..., Any]:
    """An execute wrapper that gives a statement its limits, so that no setting has to be restored.

    https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/set-commands/set-statement
    """
    limits = mysql_limits(connection, timeout)
    if not whole:
        # with a limit of 0 a row that SKIP LOCKED skips ends the statement with error 1180 (MariaDB 10.11)
        del limits["innodb_lock_wait_timeout"]
    prefix = f"SET STATEMENT {', '.join(f'{name} = {value}' for name, value in limits.items())} FOR "
    return lambda execute, sql, *rest: execute(prefix + sql, *rest)


def mysql_limits(connection: Any, timeout: float | None) -> dict[str, str]:
    """The variables that limit the wait for tables and for rows, in seconds, rounded up. Only MariaDB has a limit finer
    than a second, on the whole statement."""
    whole = LONGEST_WAIT if timeout is None else math.ceil(timeout)
    least = 0 if connection.mysql_is_mariadb else 1
    limits = {
        "lock_wait_timeout": str(max(least, min(whole, LONGEST_WAIT))),
        "innodb_lock_wait_timeout": str(max(least, min(whole, LONGEST_ROW_WAIT))),
    }
    if connection.mysql_is_mariadb:
        # 0 is no limit here: the other two end a wait of 0
        limits["max_statement_time"] = f"{max(timeout, 0.001):.3f}" if timeout else "0"
    return limits


def _sqlite(connection: Any, timeout: float | None, whole: bool) -> Statement:
    ((before,),) = run(connection, "PRAGMA busy_timeout")
    run(connection, f"PRAGMA busy_timeout = {milliseconds(timeout)}")
    return f"PRAGMA busy_timeout = {before}", None


def run(connection: BaseDatabaseWrapper, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Send a statement; the rows of its result."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall()) if cursor.description else []
