"""What held_locks() shows where it is not simple: odd names, prepared transactions, and servers that hang."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections
from django.db.backends.signals import connection_created
from django.test import override_settings

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.text import printable
from django_distlock.manager import introspection
from django_distlock.manager.introspection import MOST_ABANDONED
from django_distlock.manager.registry import registry
from django_distlock.testing import race
from tests.conftest import connect, eventually
from tests.faults.conftest import proxied
from tests.faults.server import ask
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo
    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")

KEY = 7_000_000
NAMES = ["Report", "é", "ÉCOLE d'été", '"quoted"', "back\\slash", "100%_x", "\ud800\x1b", "日本", "𝄞"]
NOTE = """
INSERT INTO django_distlock_name (lock_key, alias, name, seen_at, session, since, holder)
VALUES (%s, 'postgres', %s, 0, %s, %s, %s)
"""
LISTINGS = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE query LIKE '%%pg_locks%%' AND query NOT LIKE '%%_statements%%'
"""
# Microseconds since 1970: noted before the session began, and in an hour from now, which no clock explains.
LONG_AGO, LATER = 1_000_000, 1_000_000 * (int(datetime.now(UTC).timestamp()) + 3600)


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


def found(using: str = "postgres", **wanted: Any) -> list[LockInfo]:
    """The listed locks with these attributes, or these details."""
    (report,) = held_locks(using)
    assert report.error is None
    return [
        info
        for info in report.locks
        if all(getattr(info, key, info.details.get(key)) == value for key, value in wanted.items())
    ]


@contextmanager
def waiting(sql: str, kind: str) -> Iterator[None]:
    """A foreign session is listed as waiting in this statement; who holds what it waits for lets go in the block."""
    with foreign() as cursor, ThreadPoolExecutor(1) as pool:
        pool.submit(cursor.execute, sql)
        try:
            eventually(lambda: [info for info in found(kind=kind) if info.waiters], "nobody waits")
            yield
        except BaseException:
            cursor.connection.cancel()
            raise


def test_names_and_holders_as_they_were_noted() -> None:
    """A note counts for the session that it names, if that had begun by then: process ids are used again."""
    with foreign() as holder:
        holder.execute("SET application_name = 'distlock web-1:17'")
        for number, name in enumerate(NAMES):
            holder.execute("SELECT pg_backend_pid(), pg_advisory_lock(%s)", [KEY + number])
            session = holder.fetchone()[0] + (number % 3 == 0)
            note = session, LATER if number % 2 else LONG_AGO, printable(f"hôst:{number % 3}:MainThread")
            ask("postgres", NOTE, str(KEY + number), printable(name), *note)
        shown = {info.name: info for info in found(application_name="distlock web-1:17")}
        holder.execute("SELECT pg_advisory_unlock_all()")
    ask("postgres", "DELETE FROM django_distlock_name WHERE lock_key LIKE '7000%%'")
    assert set(shown) == set(NAMES)
    for number, name in enumerate(NAMES):
        info, valid = shown[name], number % 2 == 1 and number % 3 != 0
        assert str(info.holder).startswith(f"hôst:{number % 3}:MainThread, " if valid else "web-1:17, ")
        assert (info.acquired_at is not None) == valid
        assert info.details["also_holds"].count(", ") == len(NAMES) - 2


def test_locks_of_a_prepared_transaction() -> None:
    with foreign() as holder:
        holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({KEY})")
        holder.execute("LOCK TABLE django_distlock_name IN EXCLUSIVE MODE")
        holder.execute("PREPARE TRANSACTION 'distlock test'")
    try:
        (info,) = found(key=str(KEY))
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


@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_who_waits_in_the_process_that_looks_is_counted(using: str, name: str) -> None:
    """Though the server does not know of those that queue behind the first one."""
    lock = advisory_lock(name, using=using, timeout=60)
    waiters = [threading.Thread(target=lambda: lock.acquire().release()) for _ in range(3)]
    with lock:
        for waiter in waiters:
            waiter.start()
        eventually(lambda: [info.waiters for info in found(using, name=name)] == [3], "they are not counted")
    for waiter in waiters:
        waiter.join()


@pytest.mark.tier2
def test_ten_thousand_locks_are_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one for those on tables and rows. Its two seconds are for the server, not for what is made of the rows."""
    monkeypatch.setattr(introspection, "PATIENCE", 60)
    with foreign() as holder:
        holder.execute("SELECT pg_advisory_lock(g) FROM generate_series(1, 10000) g")
        ((before,),) = ask("postgres", LISTINGS)
        assert len(found()) == 10_000
        assert ask("postgres", LISTINGS) == [(before + 2,)]


def test_a_list_leaves_no_connection_open() -> None:
    """Of an alias whose settings are wrong, too: its thread has looked for the site key."""
    opened: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        opened.append(connection)

    wrong = {**settings.DISTLOCK["postgres"], "OPTIONS": {"database": "default"}}
    with override_settings(DISTLOCK={**settings.DISTLOCK, "wrong": wrong}):
        connection_created.connect(note)
        try:
            held_locks()
        finally:
            connection_created.disconnect(note)
    own = connections.all(initialized_only=True)
    assert opened
    assert not [each.alias for each in opened if each.connection is not None and each not in own]


# -- servers that hang: who looks is told within seconds which one it is, and nothing piles up


__all__ = ["proxied"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-list")]


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres"])
def test_a_server_that_hangs_is_one_error_of_the_list(using: str, proxied: Proxied, settings: Any) -> None:
    proxy = proxied(using)
    hung = {f"hung{number}": settings.DISTLOCK[using] for number in range(2)}
    settings.DISTLOCK = {**hung, "memory": settings.DISTLOCK["memory"]}
    connect("hung0")
    proxy.blackhole()
    began = time.monotonic()
    errors = {report.alias: bool(report.error) for report in held_locks()}
    within(time.monotonic() - began, 4.0)  # for both: they are asked at the same time
    assert errors == {"default": False, "hung0": True, "hung1": True, "memory": False}
    proxy.cut()
    eventually(lambda: not threads(), "a thread is left behind")


@pytest.mark.tier2
def test_those_who_look_again_at_what_hangs_do_not_pile_up(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names of hosts are not resolved, a look comes back after minutes; the page is reloaded meanwhile."""
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("memory", "redis")}
    goes_on = threading.Event()
    monkeypatch.setattr(registry.entry("redis").backend, "inspect", lambda: goes_on.wait(60) and [])
    for _ in range(3):
        for reports in race(held_locks, MOST_ABANDONED):
            assert {report.alias: report.error for report in reports}.items() >= {
                ("redis", "TimeoutError"),
                ("memory", None),
            }
        assert threads().count("distlock-list-redis") == MOST_ABANDONED
    goes_on.set()
    eventually(lambda: not threads(), "a thread is left behind")
    assert [report.error for report in held_locks("redis")] == [None]
