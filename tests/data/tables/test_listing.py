"""Locks on tables and rows that keep somebody waiting appear in held_locks(), with who holds and who waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from django_distlock import held_locks, table_lock
from tests.conftest import eventually
from tests.data.app.models import Account, Currency
from tests.data.world import another, ask, on_servers
from tests.transactions.rows import server_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo
    from tests.data.rival import Rival

pytestmark = on_servers
ALIASES = {"postgres": "postgres", "mariadb": "mysql"}  # database alias -> lock alias


def listed(using: str, kind: str = "relation") -> list[LockInfo]:
    (report,) = held_locks(ALIASES[using])
    assert report.error is None
    return [info for info in report.locks if info.details.get("kind") == kind]


def test_a_table_that_two_wait_for_and_only_the_holder_is_named(using: str, rival: Rival, second: Rival) -> None:
    """Whoever merely stands first in the queue is no holder."""
    waiters = {one.do("session", using) for one in (rival, second)}
    with table_lock(Account, Currency, using=using):
        holder = server_id(using)
        for number, one in enumerate((rival, second), 1):
            one.start("lock", using, ["Account"], "write", None)
            eventually(lambda number=number: [info.waiters for info in listed(using)] == [number], "not all are listed")
        (info,) = listed(using)
    for one in (rival, second):
        assert one.hear() == "held"
        one.leave()
    assert not listed(using)
    assert (info.name, info.backend) == ("dataapp_account", ALIASES[using])
    assert {int(number) for number in info.details["blocks"].split(", ")} == waiters
    assert str(holder) in (info.details.get("pid"), info.details.get("connection"))
    assert str(holder) in str(info.holder)
    assert "Lock" in info.details["mode"] or info.details["mode"] == "SHARED_NO_READ_WRITE"


@contextmanager
def waiting(using: str, write: Any, sql: str) -> Iterator[LockInfo]:
    """Somebody waits for a row that the open transaction has written: what is listed of it."""
    query = "SELECT pg_backend_pid()" if using == "postgres" else "SELECT CONNECTION_ID()"
    with another(using) as connection, ThreadPoolExecutor(1) as pool:
        number = str(ask(connection, query)[0][0])
        connection.inc_thread_sharing()

        blocked: list[LockInfo] = []

        def look() -> list[LockInfo]:
            blocked.extend(info for info in listed(using, "row") if info.details["blocks"] == number)
            return blocked

        with transaction.atomic(using=using):
            write()
            pool.submit(ask, connection, sql.format(Account.objects.using(using).get().pk))
            eventually(look, "it is not listed", pause=0.2)  # InnoDB shows its copy
            yield blocked[0]


def test_a_row_that_somebody_waits_for(using: str) -> None:
    """On InnoDB also a new one, whose lock is made by the first who wants it."""
    row = Account(owner="x")
    if using == "postgres":
        row.save(using=using)
    holder = server_id(using)
    with waiting(
        using, lambda: row.save(using=using), "SELECT * FROM dataapp_account WHERE id = {} FOR UPDATE"
    ) as info:
        assert (info.name, info.waiters) == ("dataapp_account", 1)
        if using == "mariadb":
            assert info.details["connection"] == str(holder)
            assert str(info.holder).startswith(ask(connections[using], "SELECT USER()")[0][0])
            assert str(info.holder).endswith(f", connection {holder}")
            assert info.details["mode"].startswith("X")
            assert float(info.details["idle_seconds"]) < 60


def test_inside_a_broken_transaction(using: str) -> None:
    """The list is asked for on a session of its own: the caller's transaction is none of its business."""
    connection: Any = connections[using]
    with transaction.atomic(using=using):
        connection.needs_rollback = True
        assert listed(using) == []
