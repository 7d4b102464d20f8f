"""What the server itself says of locks and sessions, asked on Django's own connection: never the library's word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import OperationalError, connections

from django_distlock.manager.registry import registry

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

DATABASES = {"postgres": "postgres", "mysql": "mariadb"}  # lock alias -> database alias
SESSION_LOCKS = tuple(DATABASES)
UNKNOWN_THREAD = 1094  # the error of KILL QUERY for a session that has ended


class Hold(NamedTuple):
    session: int
    granted: bool


def ask(using: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a statement on the server of a lock alias."""
    with connections[DATABASES.get(using, using)].cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def key_of(using: str, name: str) -> LockKey:
    """The key under which the engine knows a name."""
    from django_distlock.manager.site_key import site_key

    site_key.load()
    return registry.entry(using).key(name)


PG_LOCKS = """
SELECT pid, granted FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((classid::bigint << 32) | objid::bigint) = %s
"""
# MariaDB's plugin shows what is granted; who waits is in its process list.
MARIADB_LOCKS = """
SELECT THREAD_ID, TRUE FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock' AND TABLE_SCHEMA = %s
UNION ALL SELECT ID, FALSE FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND INFO LIKE %s
"""
MYSQL_LOCKS = """
SELECT t.PROCESSLIST_ID, m.LOCK_STATUS = 'GRANTED' FROM performance_schema.metadata_locks m
JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE m.OBJECT_TYPE = 'USER LEVEL LOCK' AND m.OBJECT_NAME = %s
"""


def is_mariadb() -> bool:
    """Which of the two servers is the database alias "mariadb" (``DISTLOCK_MYSQL``)?"""
    return bool(connections["mariadb"].mysql_is_mariadb)


def statement_limit(seconds: float) -> tuple[str, float]:
    """The variable that limits the time of a statement, and its value: MySQL counts milliseconds, and SELECT only."""
    return ("max_statement_time", seconds) if is_mariadb() else ("max_execution_time", round(seconds * 1000))


def user_locks(text: str) -> list[Hold]:
    """Who holds and who waits for what GET_LOCK knows as ``text``."""
    if is_mariadb():
        rows = ask("mysql", MARIADB_LOCKS, text, f"SELECT GET_LOCK('{text}'%")
    else:
        rows = ask("mysql", MYSQL_LOCKS, text)
    return [Hold(session, bool(granted)) for session, granted in rows]


def holds(using: str, name: str) -> list[Hold]:
    """Who holds a name and who waits for it, by server session."""
    key = key_of(using, name)
    if using == "postgres":
        return [Hold(pid, granted) for pid, granted in ask(using, PG_LOCKS, key.number)]
    return user_locks(key.text)


def holders(using: str, name: str) -> list[int]:
    return [hold.session for hold in holds(using, name) if hold.granted]


def waiters(using: str, name: str) -> list[int]:
    return [hold.session for hold in holds(using, name) if not hold.granted]


def noted(using: str, name: str) -> list[tuple[Any, ...]]:
    """What is written down for other processes: name, session, holder."""
    key = registry.entry(using).backend.listed_as(key_of(using, name))
    return ask(using, "SELECT name, session, holder FROM django_distlock_name WHERE lock_key = %s", key)


def end_session(using: str, session: int) -> None:
    """What an administrator does: pg_terminate_backend, KILL CONNECTION."""
    ask(using, "SELECT pg_terminate_backend(%s)" if using == "postgres" else "KILL CONNECTION %s", session)


def cancel_statement(using: str, session: int) -> None:
    """pg_cancel_backend, KILL QUERY. Nothing to do for a session that has ended."""
    try:
        ask(using, "SELECT pg_cancel_backend(%s)" if using == "postgres" else "KILL QUERY %s", session)
    except OperationalError as error:
        if error.args[0] != UNKNOWN_THREAD:
            raise


def session_exists(using: str, session: int) -> bool:
    if using == "postgres":
        return bool(ask(using, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", session))
    return bool(ask(using, "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s", session))


def session_of(lease: Any) -> Any:
    """The dedicated session on which a lease lives."""
    return lease._hold.grant.session


def lock_sessions(using: str) -> set[int]:
    """Every lock session in this test's database, of whatever process."""
    if using == "postgres":
        sql = (
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'distlock %%'"
            " AND datname = current_database() AND backend_type = 'client backend'"
        )
    else:
        sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
    return {row[0] for row in ask(using, sql)}
