"""Listing PostgreSQL's locks where something is odd: settings, encodings, prepared transactions, hostile searches."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.postgres.introspection import listing
from django_distlock.backends.query import LockQuery
from django_distlock.backends.text import printable
from django_distlock.operations.lookup import find_locks
from tests.conftest import eventually
from tests.faults.conftest import database_alias
from tests.faults.server import ask
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo

pytestmark = pytest.mark.usefixtures("databases")
NOTE = """
INSERT INTO django_distlock_name (lock_key, alias, name, other, seen_at, session, since, holder)
VALUES (%s, 'postgres', %s, '', 0, 0, 0, '')
"""
KEY = 7_900_001


def _found(using: str = "postgres", **wanted: Any) -> list[LockInfo]:
    page = find_locks(LockQuery(**wanted, order=("name",)), using)
    assert page.reports[0].error is None
    assert page.matching == len(page.locks)
    return list(page.locks)


@contextmanager
def _noted(name: str) -> Iterator[None]:
    """A foreign session holds KEY, which has this name."""
    connection = connections["postgres"].copy()
    try:
        ask("postgres", NOTE, str(KEY), name)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [KEY])
        yield
    finally:
        connection.close()
        ask("postgres", "DELETE FROM django_distlock_name WHERE lock_key = %s", str(KEY))


def _hold_shared(name: str, held: threading.Event, over: threading.Event) -> None:
    with advisory_lock(name, using="postgres", shared=True, timeout=5):
        held.set()
        over.wait(10)


def test_readers_of_one_process_are_one_lock_of_the_server(name: str) -> None:
    over, readers = threading.Event(), []
    try:
        for number in range(3):  # the first one is the one that is shown
            held = threading.Event()
            readers.append(threading.Thread(target=_hold_shared, args=(name, held, over), name=f"reader-{number}"))
            readers[-1].start()
            assert held.wait(10)
        (info,) = _found(text=name)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert "reader-0" in str(info.holder)
    assert "also_holds" not in info.details


COMPILED = ("jit_above_cost", "jit_inline_above_cost", "jit_optimize_above_cost")


def test_the_statement_is_not_compiled(name: str) -> None:
    """That takes seconds, each time anew."""
    database = connections["postgres"].settings_dict["NAME"]
    for setting in COMPILED:
        ask("postgres", f'ALTER DATABASE "{database}" SET {setting} = 0')
    try:
        with advisory_lock(name, using="postgres", timeout=5):
            assert [info.name for info in _found(text=name)] == [name]
    finally:
        for setting in COMPILED:
            ask("postgres", f'ALTER DATABASE "{database}" RESET {setting}')


@pytest.mark.parametrize("text", ["é" * 10_000, "(é+)+" * 2000, "x" * 10_000])
def test_a_text_longer_than_any_name_is_not_looked_for(text: str) -> None:
    with _noted(printable("é" * 512)):
        began = time.monotonic()
        assert _found(text=text) == []
        within(time.monotonic() - began, 1.0, what="a search for nothing")
        assert len(_found(text="é" * 512)) == 1


def test_nul_can_be_searched_for(name: str) -> None:
    with _noted(printable("a\0b")), advisory_lock(name, using="postgres", timeout=5):
        assert [info.name for info in _found(text="\0")] == ["a\0b"]


def test_the_server_stops_when_nobody_waits_any_more() -> None:
    """Of a statement that hangs the client may be unable to tell it."""
    blocker, other = connections["postgres"].copy(), connections["postgres"].copy()
    try:
        blocker.cursor().execute("BEGIN; LOCK TABLE django_distlock_name IN ACCESS EXCLUSIVE MODE")
        other.ensure_connection()
        connection: Any = other.connection
        connection.execute("SET statement_timeout = 8000")
        began = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(listing(LockQuery()))
        within(time.monotonic() - began, 4.0, what="a statement that hangs")
    finally:
        blocker.close()
        other.close()


def test_tables_whose_names_are_quoted() -> None:
    """They stand there as they are, and not as JSON."""
    table = 'Tä"b\\u00e9'
    quoted = f'"{table.replace(chr(34), 2 * chr(34))}"'
    holder, waiter = connections["postgres"].copy(), connections["postgres"].copy()
    waiter.inc_thread_sharing()
    thread = threading.Thread(target=lambda: waiter.cursor().execute(f"SELECT FROM {quoted}"))
    try:
        ask("postgres", f"CREATE TABLE {quoted} ()")
        holder.cursor().execute(f"BEGIN; LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")
        thread.start()
        eventually(lambda: _found(kind="relation"), "nobody is listed")
        found = {text: len(_found(text=text)) for text in ("tä", "TÄ", '""B', "\\U00E", "é", "日", "\ud800")}
    finally:
        holder.close()
        thread.join()
        waiter.close()
        ask("postgres", f"DROP TABLE {quoted}")
    assert found == {"tä": 1, "TÄ": 1, '""B': 1, "\\U00E": 1, "é": 0, "日": 0, "\ud800": 0}


PLAIN = """
CREATE TABLE django_distlock_name
(lock_key text PRIMARY KEY, name text, other text, session bigint, since bigint, holder text)
"""
ROLE = "distlock \xe9"
BYTES = (
    "SET pg_stat_statements.track = 'none'",  # what it keeps is read by other tests, in UTF-8
    PLAIN,
    f"CREATE ROLE \"{ROLE}\" SUPERUSER LOGIN PASSWORD 'x'",
    f"INSERT INTO django_distlock_name VALUES ('{KEY}', 'n\xe9', '', 0, 0, '')",
)


def _connected(user: str, password: str, database: str) -> psycopg.pq.PGconn:
    server = connections["postgres"].settings_dict
    place = f"host={server['HOST']} port={server['PORT']} client_encoding=SQL_ASCII"
    who = f"user='{user}' password={password} dbname={database}"
    connection = psycopg.pq.PGconn.connect(f"{place} {who}".encode("latin-1"))
    assert connection.status == psycopg.pq.ConnStatus.OK, connection.error_message
    return connection


def _do(connection: psycopg.pq.PGconn, sql: str) -> None:
    result = connection.exec_(sql.encode("latin-1"))
    assert not result.error_message, result.error_message


@pytest.fixture
def of_bytes() -> Iterator[str]:
    """The alias of a database that knows no encoding, in which names are no UTF-8. A role whose name is none holds a
    lock there and in the tests' own database."""
    ask("postgres", "DROP DATABASE IF EXISTS distlock_bytes")
    ask(
        "postgres", "CREATE DATABASE distlock_bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    server = connections["postgres"].settings_dict
    with ExitStack() as stack:
        stack.callback(ask, "postgres", "DROP DATABASE distlock_bytes WITH (FORCE)")
        alias = stack.enter_context(database_alias("of_bytes", "postgres", NAME="distlock_bytes"))
        made = _connected(server["USER"], server["PASSWORD"], "distlock_bytes")
        stack.callback(made.finish)
        stack.callback(_do, made, f'DROP ROLE IF EXISTS "{ROLE}"')
        for sql in BYTES:
            _do(made, sql)
        for database in ("distlock_bytes", server["NAME"]):
            holder = _connected(ROLE, "x", database)
            stack.callback(holder.finish)
            _do(holder, f"SELECT pg_advisory_lock({KEY})")
        options = {"BACKEND": settings.DISTLOCK["postgres"]["BACKEND"], "OPTIONS": {"database": alias}}
        with override_settings(DISTLOCK={**settings.DISTLOCK, alias: options}):
            yield alias


def test_names_that_are_no_utf_8(of_bytes: str) -> None:
    (info,) = _found(of_bytes)
    assert (info.key, info.name) == (str(KEY), "n\ufffd")
    assert _found(of_bytes, text="N") == [info]
    assert _found(of_bytes, text="é") == []
    for using in (of_bytes, "postgres"):
        (info,) = _found(using, keys=frozenset({str(KEY)}), text="79")
        assert "distlock \ufffd at" in str(info.holder)


def test_locks_of_a_prepared_transaction() -> None:
    waiting = connections["postgres"].copy()
    waiting.inc_thread_sharing()
    thread = threading.Thread(target=_wait_for_table, args=(waiting,))
    try:
        with connections["postgres"].copy().cursor() as cursor:
            cursor.execute(f"BEGIN; SELECT pg_advisory_xact_lock({KEY})")
            cursor.execute("LOCK TABLE django_distlock_name IN EXCLUSIVE MODE")
            cursor.execute("PREPARE TRANSACTION 'distlock test'")
            cursor.connection.close()
        (info,) = _found(keys=frozenset({str(KEY)}))
        assert (info.holder, dict(info.details)) == ("a prepared transaction", {})
        with pytest.raises(UnsupportedOperation, match="ROLLBACK PREPARED"):
            break_lock(info)
        thread.start()
        eventually(lambda: _found(kind="relation"), "nobody is listed")
        (blocked,) = _found(kind="relation")
        assert (blocked.name, blocked.holder) == ("django_distlock_name", "a prepared transaction")
        assert {info.holder for info in find_locks(LockQuery(order=("holder",)), "postgres").locks} == {blocked.holder}
    finally:
        ask("postgres", "ROLLBACK PREPARED 'distlock test'")
        if thread.ident:
            thread.join()
        waiting.close()
    assert not [info for info in held_locks("postgres")[0].locks if info.key == str(KEY)]


def _wait_for_table(connection: Any) -> None:
    connection.cursor().execute("DELETE FROM django_distlock_name WHERE false")
