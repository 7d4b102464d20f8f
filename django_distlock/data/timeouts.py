"""How long a locking statement waits: the engine's timeout, set for that statement and restored exactly."""

from __future__ import annotations

import contextlib
import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import Error

from django_distlock.manager.isolation import STALE_LEVELS, configured_level
from django_distlock.validation import UNSET, Timeout, optional_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper

# Seconds that a data lock waits by default: as with named locks, no web process waits for ever by accident.
DEFAULT_TIMEOUT = 10.0
# lock_timeout and busy_timeout are milliseconds in 31 bits: 24 days.
LONGEST_MS = 2**31 - 1
# MySQL's longest lock_wait_timeout, a year, and MariaDB's longest innodb_lock_wait_timeout; seconds.
LONGEST_WAIT, LONGEST_ROW_WAIT = 31_536_000, 100_000_000

PG_SET = (
    "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
    " set_config('lock_timeout', %s, true),"
    " set_config('statement_timeout', COALESCE(%s, current_setting('statement_timeout')), true)"
)
PG_RESTORE = "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)"


def resolve(timeout: Timeout) -> float | None:
    """Seconds to wait, None for ever. ValueError or TypeError that names the argument."""
    given = optional_seconds("timeout", timeout, none=True)
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
    their lock timeouts start again for each table or row. It costs two statements; none on PostgreSQL for None, where
    lock_timeout of the server applies (by default for ever). After an error on PostgreSQL the rollback of the
    transaction or savepoint restores the settings. Oracle's MySQL has whole seconds, at least one.

    Without ``whole`` PostgreSQL's limit is on each lock and not on the statement: for a statement that has work to do
    and must not wait.
    """
    setters: dict[str, Callable[..., AbstractContextManager[None]]] = {
        "postgresql": partial(_postgres, whole=whole),
        "mysql": _mysql,
        "sqlite": _sqlite,
    }
    if (setter := setters.get(connection.vendor)) is None:
        yield
        return
    with setter(connection, timeout):
        yield


@contextmanager
def _postgres(connection: Any, timeout: float | None, *, whole: bool) -> Iterator[None]:
    if timeout is None:
        yield
        return
    limit = str(milliseconds(timeout, least=1))  # 0 would be for ever
    with connection.cursor() as cursor:
        if configured_level(connection) in STALE_LEVELS:
            before = _without_a_snapshot(cursor, limit, whole)
        else:
            cursor.execute(PG_SET, [limit, limit if whole else None])
            before = cursor.fetchone()[:2]
    yield
    # explicitly: a local setting outlives the release of its savepoint
    with connection.cursor() as cursor:
        cursor.execute(PG_RESTORE, before)


def _without_a_snapshot(cursor: Any, limit: str, whole: bool) -> list[str]:
    """Set the limits by SHOW and SET, which take no snapshot, as LOCK TABLE takes none: that of a SELECT would be older
    than the lock. It costs two more statements."""
    before = []
    for name in ("lock_timeout", "statement_timeout"):
        cursor.execute(f"SHOW {name}")
        before.append(cursor.fetchone()[0])
        if whole or name == "lock_timeout":
            cursor.execute(f"SET LOCAL {name} = {limit}")
    return before


@contextmanager
def _mysql(connection: Any, timeout: float | None) -> Iterator[None]:
    """The old values stay on the server, in variables of the session, so that no digit of them is lost."""
    limits = mysql_limits(connection, timeout)
    keep = ", ".join(f"@distlock_{name} = @@SESSION.{name}" for name in limits)
    put = ", ".join(f"SESSION {name} = {value}" for name, value in limits.items())
    back = ", ".join(f"SESSION {name} = @distlock_{name}" for name in limits)
    with connection.cursor() as cursor:
        cursor.execute(f"SET {keep}, {put}")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Error):  # the connection is gone, and its settings with it
            _run(connection, f"SET {back}")
        raise
    _run(connection, f"SET {back}")


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


@contextmanager
def _sqlite(connection: Any, timeout: float | None) -> Iterator[None]:
    with connection.cursor() as cursor:
        before = int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])
        cursor.execute(f"PRAGMA busy_timeout = {milliseconds(timeout)}")
    try:
        yield
    finally:
        with contextlib.suppress(Error):
            _run(connection, f"PRAGMA busy_timeout = {before}")


def _run(connection: BaseDatabaseWrapper, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
