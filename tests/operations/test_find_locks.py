"""PostgreSQL chooses, sorts and cuts as the library would: each query is put to it, and to all that it tells. And what
is odd there: encodings, quoted tables, prepared transactions. Then the other engines."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.query import ORDERS, LockQuery, chosen
from django_distlock.backends.text import printable
from django_distlock.manager.registry import registry
from django_distlock.operations.lookup import find_locks
from tests.conftest import eventually
from tests.faults.conftest import database_alias
from tests.faults.server import ask, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo

pytestmark = pytest.mark.usefixtures("databases")

KEY = 7_000_000
NAMES = [
    "Report", "report:2", "é", "ÉCOLE d'été", '"quoted"', "back\\slash", "100%_x", "a.*b", "\ud800\x1b", "日本", "𝄞",
]  # fmt: skip
NOTE = """
INSERT INTO django_distlock_name (lock_key, alias, name, seen_at, session, since, holder)
VALUES (%s, 'postgres', %s, 0, %s, %s, %s)
"""
# Microseconds since 1970: noted before the session began, and in an hour from now, which no clock explains.
LONG_AGO, LATER = 1_000_000, 1_000_000 * (int(datetime.now(UTC).timestamp()) + 3600)
# And how many are found.
TEXTS = {
    "REPORT": 2, "é": 2, "É": 2, "ÉTÉ": 1, '"': 1, "\\": 1, "%": 1, ".*": 1, "\ud800": 1, "本": 1, "00e9": 0,
    "u00": 0, "\x1b": 1, "𝄞": 1, "7000003": 1, "ours": 3, "'": 1, "(é+)+" * 2000: 0,
}  # fmt: skip
CONDITIONS: list[tuple[dict[str, Any], int]] = [
    ({"shared": True}, 3),
    ({"shared": False}, len(NAMES) + 3),
    ({"awaited": True}, 1),
    ({"awaited": False}, len(NAMES) + 5),
    ({"older": 0.0}, 2),
    ({"older": 3600.0}, 0),
    ({"older": -7200.0}, 4),
    ({"kind": "named"}, len(NAMES) + 6),
    ({"kind": "relation"}, 0),
    ({"keys": frozenset({str(KEY), str(KEY + 100), "0", "x'y"})}, 3),
    ({"keys": frozenset()}, 0),
    ({"text": "report", "shared": False, "awaited": True}, 1),
]


@contextmanager
def foreign(database: str = "postgres") -> Iterator[Any]:
    """A cursor of a session that is none of ours."""
    connection = connections[database].copy()
    connection.inc_thread_sharing()
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


@contextmanager
def waiting(sql: str, kind: str) -> Iterator[None]:
    """A foreign session is listed as waiting in this statement; who holds what it waits for lets go in the block."""
    with foreign() as cursor, ThreadPoolExecutor(1) as pool:
        pool.submit(cursor.execute, sql)
        try:
            eventually(lambda: find_locks(LockQuery(awaited=True, kind=kind), "postgres").locks, "nobody waits")
            yield
        except BaseException:
            cursor.connection.cancel()
            raise


def everything() -> list[LockInfo]:
    (report,) = held_locks("postgres")
    assert report.error is None
    return list(report.locks)


def who(info: LockInfo) -> tuple[str, str]:
    return info.key, info.details["pid"]


def compare(query: LockQuery) -> list[LockInfo]:
    """What was found."""
    page = find_locks(query, "postgres")
    expected = chosen(everything(), query, datetime.now(UTC))
    assert (page.matching, page.total) == (expected.matching, expected.total)
    # the order ends with the key: only of a shared lock one holder may come before the other
    assert [info.key for info in page.locks] == [info.key for info in expected.locks]
    if query.stop is None:
        assert sorted(map(who, page.locks)) == sorted(map(who, expected.locks))
    return list(page.locks)


@pytest.fixture
def held(databases: None) -> Iterator[None]:
    """Locks of foreign sessions, noted in several ways; shared ones; one that somebody waits for; ours."""
    with foreign() as first, foreign() as second:
        first.execute("SET application_name = 'distlock web-1:17'")
        for number, name in enumerate(NAMES):
            first.execute("SELECT pg_backend_pid(), pg_advisory_lock(%s)", [KEY + number])
            session = first.fetchone()[0] + (number % 3 == 0)
            note = session, LATER if number % 2 else LONG_AGO, printable(f"hôst:{number % 3}:MainThread")
            ask("postgres", NOTE, str(KEY + number), printable(name), *note)
        for shared in (first, second):
            shared.execute("SELECT pg_advisory_lock_shared(%s)", [KEY + 100])
        second.execute("BEGIN; SELECT pg_advisory_lock(%s)", [KEY + 101])
        with (
            waiting(f"SELECT pg_advisory_lock({KEY + 1})", "named"),
            advisory_lock("ours", using="postgres", timeout=5),
            advisory_lock("ours too", using="postgres", shared=True, timeout=5),
            transaction.atomic("postgres"),
            advisory_lock("ours inside", using="postgres", timeout=5),
        ):
            yield
            first.execute("SELECT pg_advisory_unlock_all()")
    ask("postgres", "DELETE FROM django_distlock_name WHERE lock_key LIKE '7000%%'")


@pytest.mark.usefixtures("held")
def test_what_postgresql_chooses_is_what_the_library_would_choose() -> None:
    assert {text: len(compare(LockQuery(text=text, order=("name",)))) for text in TEXTS} == TEXTS
    for wanted, least in CONDITIONS:
        assert len(compare(LockQuery(**wanted, order=("name",)))) >= least, wanted
    orders = [(sign + field, "name") for field, sign in product(ORDERS, ("", "-"))]
    for order in (*orders, ("-mode", "-waiters", "holder", "name")):
        assert len(compare(LockQuery(order=order))) >= len(NAMES) + 6
    # pages are disjoint and complete
    whole = sorted(map(who, everything()))
    pages = [compare(LockQuery(order=("since",), start=start, stop=start + 4)) for start in range(0, len(whole) + 3, 4)]
    assert sorted(who(info) for page in pages for info in page) == whole


def found(using: str = "postgres", **wanted: Any) -> list[LockInfo]:
    page = find_locks(LockQuery(**wanted, order=("name",)), using)
    assert (page.reports[0].error, page.matching) == (None, len(page.locks))
    return list(page.locks)


def test_tables_whose_names_are_quoted() -> None:
    """They stand there as they are, and not as JSON."""
    quoted = '"Tä""b\\u00e9"'
    expected = {"tä": 1, "TÄ": 1, '""B': 1, "\\U00E": 1, "é": 0, "日": 0, "\ud800": 0}
    ask("postgres", f"CREATE TABLE {quoted} ()")
    with foreign() as holder:
        holder.execute(f"BEGIN; LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")
        with waiting(f"SELECT FROM {quoted}", "relation"):
            number = {text: len(found(text=text)) for text in expected}
            holder.execute("ROLLBACK")
    ask("postgres", f"DROP TABLE {quoted}")
    assert number == expected


def test_names_that_are_no_utf_8() -> None:
    """In a database that knows no encoding."""
    bytes_ = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    ask("postgres", f"CREATE DATABASE distlock_bytes {bytes_}")
    columns = "lock_key text PRIMARY KEY, name text, session bigint, since bigint, holder text"
    usual = settings.DISTLOCK["postgres"]
    with database_alias("of_bytes", "postgres", NAME="distlock_bytes") as alias:
        ask(alias, f"CREATE TABLE django_distlock_name ({columns})")
        ask(alias, f"INSERT INTO django_distlock_name VALUES ('{KEY}', E'n\\xe9', 0, 0, '')")
        with foreign(alias) as holder, override_settings(DISTLOCK={alias: {**usual, "OPTIONS": {"database": alias}}}):
            holder.execute(f"SELECT pg_advisory_lock({KEY})")
            (info,) = found(alias)
            assert (info.key, info.name) == (str(KEY), "n\ufffd")
            assert (found(alias, text="N"), found(alias, text="é")) == ([info], [])
        registry.close()
    ask("postgres", "DROP DATABASE distlock_bytes WITH (FORCE)")


def test_locks_of_a_prepared_transaction() -> None:
    with foreign() as holder:
        holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({KEY})")
        holder.execute("LOCK TABLE django_distlock_name IN EXCLUSIVE MODE")
        holder.execute("PREPARE TRANSACTION 'distlock test'")
    try:
        (info,) = found(keys=frozenset({str(KEY)}))
        with pytest.raises(UnsupportedOperation, match="ROLLBACK PREPARED"):
            break_lock(info)
        with waiting("DELETE FROM django_distlock_name WHERE false", "relation"):
            (blocked,) = found(kind="relation")
            ask("postgres", "ROLLBACK PREPARED 'distlock test'")
    finally:
        if ask("postgres", "SELECT 1 FROM pg_prepared_xacts WHERE gid = 'distlock test'"):
            ask("postgres", "ROLLBACK PREPARED 'distlock test'")
    assert (info.holder, dict(info.details)) == ("a prepared transaction", {})
    assert (blocked.name, blocked.holder) == ("django_distlock_name", "a prepared transaction")


# --- other engines


@pytest.mark.parametrize("using", ["redis", "zookeeper", "leasetable", "redlock", "mysql", "postgres"])
def test_locks_of_known_keys(using: str, name: str) -> None:
    """One of them is free, and two are none; nobody walks out of where the locks are."""
    with advisory_lock(name, using=using, timeout=5), advisory_lock(f"{name} beside", using=using, timeout=5):
        (info,) = find_locks(LockQuery(text=name + " bes", order=("name",)), using).locks
        free = registry.entry(using).backend.listed_as(key_of(using, f"{name} free"))
        keys = frozenset({info.key, free, "../..", "\ud800}{*"})
        (again,) = find_locks(LockQuery(keys=keys), using).locks
        assert (again.key, again.holder) == (info.key, info.holder)
        assert not find_locks(LockQuery(keys=frozenset()), using).locks
    assert not find_locks(LockQuery(keys=keys), using).locks


@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_who_waits_in_the_process_that_looks_is_counted(using: str, name: str) -> None:
    """Though the server does not know of those that queue behind the first one."""
    lock = advisory_lock(name, using=using, timeout=60)
    waiters = [threading.Thread(target=lambda: lock.acquire().release()) for _ in range(3)]
    with lock:
        for waiter in waiters:
            waiter.start()
        eventually(lambda: [info.waiters for info in found(using, text=name)] == [3], "they are not counted")
        for awaited, order in product((True, False), ((), ("-waiters",))):
            page = find_locks(LockQuery(text=name, awaited=awaited, order=order), using)
            assert (page.matching, len(page.locks)) == (awaited, awaited)
    for waiter in waiters:
        waiter.join()
