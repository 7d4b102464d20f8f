"""Ten thousand held locks are listed by one statement, and a server that hangs keeps nobody waiting for long."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.text import MOST_NAMED
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, Own
from tests.faults.conftest import proxied
from tests.faults.server import SESSION_LOCKS, ask, is_mariadb, key_of
from tests.support.timing import within

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

MANY, SESSIONS = 10_000, 4
FIRST = 5_000_000
LOOKED = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND query LIKE '%%pg_locks%%' AND query NOT LIKE '%%pg_stat_statements%%'
"""
NAMES = """
INSERT INTO django_distlock_name SELECT {0} + n, 'postgres', 'many ' || n, '', 0, 0, 0, ''
FROM generate_series(0, {1} - 1) n ON CONFLICT DO NOTHING
"""
LEASES = """
INSERT INTO django_distlock_lease SELECT 'many' || n, 'leasetable_postgres', 'many ' || n, 't', n, 0, 9e15, 'h'
FROM generate_series(1, %s) n
"""

LEASES_LOOKED = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND query LIKE '%%django_distlock_lease%%' AND query LIKE '%%SELECT%%' AND query NOT LIKE '%%pg_stat_statements%%'
AND query NOT LIKE '%%generate_series%%'
"""
MYSQL_LOOKED = """
SELECT COALESCE(SUM(COUNT_STAR), 0) FROM performance_schema.events_statements_summary_by_digest
WHERE SCHEMA_NAME = DATABASE() AND DIGEST_TEXT LIKE %s COLLATE utf8mb4_general_ci
AND DIGEST_TEXT LIKE '%%django_distlock_name%%' COLLATE utf8mb4_general_ci
"""


def _calls() -> int:
    return int(ask("postgres", LOOKED)[0][0])


def test_ten_thousand_locks_of_several_sessions_are_one_statement(name: str) -> None:
    holders = [connections["postgres"].copy() for _ in range(SESSIONS)]
    each = MANY // SESSIONS
    try:
        for number, holder in enumerate(holders):
            with holder.cursor() as cursor:
                first = FIRST + number * each
                cursor.execute(
                    "SELECT count(pg_advisory_lock(n)) FROM generate_series(%s, %s) n", [first, first + each - 1]
                )
        ask("postgres", NAMES.format(FIRST, MANY))
        with advisory_lock(name, using="postgres"):
            before = _calls()
            (report,) = held_locks("postgres")
            assert _calls() - before == 1  # those on tables and rows, too
    finally:
        ask("postgres", "DELETE FROM django_distlock_name WHERE name LIKE 'many %%'")
        for holder in holders:
            holder.close()
    shown = {info.key: info for info in report.locks}
    assert len(shown) >= MANY + 1
    assert {shown[str(FIRST + number)].name for number in range(MANY)} == {f"many {number}" for number in range(MANY)}
    others = shown[str(FIRST)].details["also_holds"].split(", ")
    assert len(others) == MOST_NAMED + 1
    assert others[-1] == f"{each - 1 - MOST_NAMED} more"
    mine = shown[str(key_of("postgres", name).number)]
    assert (mine.name, "also_holds" in mine.details) == (name, False)


def test_ten_thousand_leases() -> None:
    ask("postgres", LEASES, MANY)
    before = ask("postgres", LEASES_LOOKED)
    try:
        (report,) = held_locks("leasetable_postgres")
        assert ask("postgres", LEASES_LOOKED)[0][0] - before[0][0] == 1
    finally:
        ask("postgres", "DELETE FROM django_distlock_lease WHERE digest LIKE 'many%%'")
    assert len(report.locks) >= MANY


def test_the_names_of_mysql_are_one_statement(name: str) -> None:
    table = "%METADATA_LOCK_INFO%" if is_mariadb() else "%metadata_locks%"
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context(advisory_lock(f"{name} {number}", using="mysql"))
        before = ask("mysql", MYSQL_LOOKED, table)
        (report,) = held_locks("mysql")
        assert ask("mysql", MYSQL_LOOKED, table)[0][0] - before[0][0] == 1
    assert sum((info.name or "").startswith(f"{name} ") for info in report.locks) == 20


@pytest.mark.parametrize("using", [*SESSION_LOCKS, "leasetable_postgres"])
def test_a_server_that_hangs_is_an_error_within_two_seconds(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    proxy.blackhole()
    began = time.monotonic()
    (report,) = held_locks(using)
    within(time.monotonic() - began, 2.5)
    assert (report.locks, bool(report.error)) == ((), True)
    proxy.cut()
    with pytest.raises(Exception, match=r"lost|lock session|answer"):
        lease.release()


def test_a_server_that_was_stopped_too(databases: None, settings: Any, tmp_path: Path) -> None:
    with Own(tmp_path) as own:
        settings.DISTLOCK = {**settings.DISTLOCK, "redis": {"BACKEND": BACKEND, "OPTIONS": {"url": own.url}}}
        assert held_locks("redis")[0].error is None
        own.signal(signal.SIGSTOP)
        began = time.monotonic()
        (report,) = held_locks("redis")
        within(time.monotonic() - began, 2.5)
        assert report.error
        assert own.url not in repr(report)
        own.signal(signal.SIGCONT)
        eventually(lambda: held_locks("redis")[0].error is None, "it is not asked again")
