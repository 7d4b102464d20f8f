"""PostgreSQL chooses, sorts and cuts as the library would: each query is put to it, and to all that it tells."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import OperationalError, connections, transaction
from django.test import override_settings

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.query import ORDERS, LockQuery, chosen
from django_distlock.backends.text import printable
from django_distlock.manager.registry import registry
from django_distlock.operations.lookup import find_locks
from tests.conftest import eventually
from tests.faults.server import ask, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo

pytestmark = pytest.mark.usefixtures("databases")

FIRST = 7_000_000
NAMES = [
    "Report",
    "report:2",
    "é",
    "ÉCOLE d'été",
    '"quoted"',
    "back\\slash",
    "100%_x",
    "a.*b",
    "\ud800\x1b",
    "日本",
    "𝄞",
]
NOTE = """
INSERT INTO django_distlock_name (lock_key, alias, name, other, seen_at, session, since, holder)
VALUES (%s, 'postgres', %s, '', 0, %s, %s, %s)
"""
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'no lock session'"
# Microseconds since 1970: noted before the session began, and in an hour from now, which no clock explains.
LONG_AGO, LATER = 1_000_000, 1_000_000 * (int(datetime.now(UTC).timestamp()) + 3600)
TEXTS = [
    "REPORT",
    "é",
    "É",
    "ÉTÉ",
    '"',
    "\\",
    "%",
    ".*",
    "\ud800",
    "本",
    "00e9",
    "u00",
    "\x1b",
    "𝄞",
    "7000003",
    "ours",
    "'",
]


def _told(key: int, name: str, session: int, since: int) -> None:
    ask("postgres", NOTE, str(key), printable(name), session, since, printable(f"hôst:{key % 3}:MainThread"))


@pytest.fixture
def held(databases: None) -> Iterator[None]:
    """Locks of foreign sessions, noted in several ways; shared ones; one that somebody waits for; ours."""
    with ExitStack() as stack:
        one, two, waiter = (connections["postgres"].copy() for _ in range(3))
        for connection in (one, two, waiter):
            stack.callback(connection.close)
        stack.callback(ask, "postgres", "DELETE FROM django_distlock_name WHERE lock_key LIKE '7000%%'")
        with one.cursor() as first, two.cursor() as second, waiter.cursor() as third:
            first.execute("SELECT pg_backend_pid()")
            pid = first.fetchone()[0]
            first.execute("SET application_name = 'distlock web-1:17'")
            for number, name in enumerate(NAMES):
                first.execute("SELECT pg_advisory_lock(%s)", [FIRST + number])
                _told(FIRST + number, name, pid if number % 3 else pid + 1, LATER if number % 2 else LONG_AGO)
            for shared in (first, second):
                shared.execute("SELECT pg_advisory_lock_shared(%s)", [FIRST + 100])
            second.execute("BEGIN; SELECT pg_advisory_lock(%s)", [FIRST + 101])
            third.execute("SET application_name = 'no lock session'")
            waiter.inc_thread_sharing()
            thread = threading.Thread(target=_wait, args=(waiter,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(ask, "postgres", END)
            stack.enter_context(advisory_lock("ours", using="postgres", timeout=5))
            stack.enter_context(advisory_lock("ours too", using="postgres", shared=True, timeout=5))
            with transaction.atomic("postgres"):
                stack.enter_context(advisory_lock("ours inside", using="postgres", timeout=5))
                eventually(lambda: [info for info in _everything() if info.waiters], "nobody waits")
                yield


def _wait(connection: Any) -> None:
    with pytest.raises(OperationalError, match="terminating"):
        connection.cursor().execute("SELECT pg_advisory_lock(%s)", [FIRST + 1])


def _everything() -> list[LockInfo]:
    (report,) = held_locks("postgres")
    assert report.error is None
    return list(report.locks)


def _who(info: LockInfo) -> tuple[str, str]:
    return info.key, info.details["pid"]


def _compare(query: LockQuery) -> int:
    """How many were found."""
    page = find_locks(query, "postgres")
    expected = chosen(_everything(), query, datetime.now(UTC))
    assert (page.matching, page.total) == (expected.matching, expected.total)
    # the order ends with the key: only of a shared lock one holder may come before the other
    assert [info.key for info in page.locks] == [info.key for info in expected.locks]
    if query.stop is None:
        assert sorted(map(_who, page.locks)) == sorted(map(_who, expected.locks))
    return len(page.locks)


@pytest.mark.usefixtures("held")
def test_texts() -> None:
    found = {text: _compare(LockQuery(text=text, order=("name",))) for text in TEXTS}
    assert found == {
        "REPORT": 2, "é": 2, "É": 2, "ÉTÉ": 1, '"': 1, "\\": 1, "%": 1, ".*": 1, "\ud800": 1, "本": 1, "00e9": 0,
        "u00": 0, "\x1b": 1, "𝄞": 1, "7000003": 1, "ours": 3, "'": 1,
    }  # fmt: skip


@pytest.mark.usefixtures("held")
def test_orders() -> None:
    for field, sign in product(ORDERS, ("", "-")):
        assert _compare(LockQuery(order=(sign + field, "name"))) >= len(NAMES) + 6
    assert _compare(LockQuery(order=("-mode", "-waiters", "holder", "name"))) >= len(NAMES) + 6


@pytest.mark.usefixtures("held")
def test_pages_are_disjoint_and_complete() -> None:
    whole = len(_everything())
    seen = []
    for start in range(0, whole + 3, 4):
        query = LockQuery(order=("since",), start=start, stop=start + 4)
        assert _compare(query) == max(0, min(4, whole - start))
        seen += map(_who, find_locks(query, "postgres").locks)
    assert sorted(seen) == sorted(map(_who, _everything()))


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
    ({"keys": frozenset({str(FIRST), str(FIRST + 100), "0", "x'y"})}, 3),
    ({"keys": frozenset()}, 0),
    ({"text": "report", "shared": False, "awaited": True}, 1),
]


@pytest.mark.usefixtures("held")
def test_conditions() -> None:
    for wanted, least in CONDITIONS:
        assert _compare(LockQuery(**wanted, order=("name",))) >= least, wanted


def test_several_aliases_are_one_list(databases: None) -> None:
    aliases = {alias: settings.DISTLOCK[alias] for alias in ("postgres", "memory")}
    with override_settings(DISTLOCK=aliases), ExitStack() as stack:
        for number in range(10):
            using = "memory" if number % 3 else "postgres"
            stack.enter_context(advisory_lock(f"list:{number}", using=using, timeout=5))
        whole = find_locks(LockQuery(text="list:", order=("-name",)))
        assert [info.name for info in whole.locks] == [f"list:{9 - number}" for number in range(10)]
        for start in range(12):
            page = find_locks(LockQuery(text="list:", order=("-name",), start=start, stop=start + 3))
            assert [info.key for info in page.locks] == [info.key for info in whole.locks[start : start + 3]]
            assert (page.matching, len(page.reports)) == (10, 3)


@pytest.mark.parametrize("using", ["redis", "zookeeper", "leasetable", "memory", "redlock", "mysql", "postgres"])
def test_locks_of_known_keys(using: str, name: str) -> None:
    """One of them is free, and two are none; nobody walks out of where the locks are."""
    with advisory_lock(name, using=using, timeout=5), advisory_lock(f"{name} beside", using=using, timeout=5):
        (info,) = find_locks(LockQuery(text=name + " bes", order=("name",)), using).locks
        free = key_of(using, f"{name} free")
        keys = {info.key, registry.entry(using).backend.listed_as(free), "../..", "\ud800}{*"}
        (found,) = find_locks(LockQuery(keys=frozenset(keys)), using).locks
        assert (found.key, found.holder) == (info.key, info.holder)
        assert not find_locks(LockQuery(keys=frozenset()), using).locks
    assert not find_locks(LockQuery(keys=frozenset(keys)), using).locks
