"""Locks on tables and rows that keep somebody waiting appear in held_locks(), with who holds and who waits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import advisory_lock, held_locks, table_lock
from tests.conftest import eventually
from tests.data.app.models import Account, Currency
from tests.data.asking import another, ask
from tests.data.rival import Rival, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo

ALIASES = {"postgres": "postgres", "mysql": "mariadb"}  # lock alias -> database alias


@pytest.fixture(params=ALIASES)
def using(request: pytest.FixtureRequest, fresh: None) -> Iterator[str]:
    yield request.param
    Account.objects.using(ALIASES[request.param]).all().delete()


def listed(using: str, kind: str = "relation") -> list[LockInfo]:
    (report,) = held_locks(using)
    assert report.error is None
    return [info for info in report.locks if info.details.get("kind") == kind]


def session_number(connection: Any) -> int:
    sql = "SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()"
    return int(ask(connection, sql)[0][0])


def asked_for(using: str, rival: Rival) -> int:
    """The rival's session, whose wait for the table of Account has begun."""
    number: int = rival.do("session", ALIASES[using])
    rival.start("lock", ALIASES[using], ["Account"], "write", None)
    eventually(lambda: listed(using), "nobody is listed")
    return number


def test_a_table_that_somebody_waits_for(using: str, rival: Rival) -> None:
    alias = ALIASES[using]
    with table_lock(Account, Currency, using=alias):
        holder = session(alias)
        waiter = asked_for(using, rival)
        (info,) = listed(using)
    assert rival.hear() == "held"
    rival.leave()
    assert not listed(using)
    assert (info.name, info.waiters, info.backend) == ("dataapp_account", 1, using)
    assert info.details["blocks"] == str(waiter)
    assert str(holder) in (info.details.get("pid"), info.details.get("connection"))
    assert str(holder) in str(info.holder)
    assert "Lock" in info.details["mode"] or info.details["mode"] == "SHARED_NO_READ_WRITE"


def test_what_blocks_nobody_is_not_listed(using: str) -> None:
    with table_lock(Account, using=ALIASES[using]), advisory_lock("data:listing", using=using):
        # the waits of the test before: InnoDB shows a copy, made anew only if nobody has looked for a tenth of a second
        eventually(lambda: not listed(using, "row"), "something is listed", pause=0.2)
        (report,) = held_locks(using)
    assert "data:listing" in [info.name for info in report.locks]
    assert not [info for info in report.locks if info.details.get("kind")]


def test_two_wait_and_only_the_holder_is_named(using: str, rival: Rival, second: Rival) -> None:
    """Whoever merely stands first in the queue is no holder."""
    with table_lock(Account, using=ALIASES[using]):
        waiters = {asked_for(using, rival), second.do("session", ALIASES[using])}
        second.start("lock", ALIASES[using], ["Account"], "write", None)
        eventually(lambda: [info.waiters for info in listed(using)] == [2], "not both are listed")
        (info,) = listed(using)
    assert {int(number) for number in info.details["blocks"].split(", ")} == waiters
    for one in (rival, second):
        assert one.hear() == "held"
        one.leave()


def test_a_row_that_somebody_waits_for(using: str) -> None:
    alias = ALIASES[using]
    account = Account.objects.using(alias).create(owner="x")
    query = f"UPDATE dataapp_account SET balance = 1 WHERE id = {account.pk}"
    with another(alias) as connection:
        number = session_number(connection)
        connection.inc_thread_sharing()
        with transaction.atomic(using=alias):
            ask(connections[alias], query)
            thread = threading.Thread(target=ask, args=(connection, query))
            thread.start()
            # InnoDB shows a copy, which it makes anew only if nobody has looked for a tenth of a second: until then it
            # may show the waits of the test before
            eventually(lambda: blocked(using, number), "it is not listed", pause=0.2)
            (info,) = blocked(using, number)
        thread.join()
    assert (info.name, info.waiters) == ("dataapp_account", 1)


def blocked(using: str, waiter: int) -> list[LockInfo]:
    """The rows that keep this session waiting."""
    return [info for info in listed(using, "row") if info.details["blocks"] == str(waiter)]


def test_a_new_row_that_somebody_waits_for(fresh: None) -> None:
    """Who has inserted it holds no lock on it until somebody else wants it: then that one makes the holder's."""
    with another("mariadb") as connection:
        number = session_number(connection)
        connection.inc_thread_sharing()
        with transaction.atomic(using="mariadb"):
            account = Account.objects.using("mariadb").create(owner="x")
            holder, address = ask(connections["mariadb"], "SELECT CONNECTION_ID(), USER()")[0]
            query = f"SELECT * FROM dataapp_account WHERE id = {account.pk} FOR UPDATE"
            thread = threading.Thread(target=ask, args=(connection, query))
            thread.start()
            # MariaDB may go on showing the waits of the test before
            eventually(lambda: blocked("mysql", number), "it is not listed", pause=0.2)
            (info,) = blocked("mysql", number)
        thread.join()
    account.delete(using="mariadb")
    assert info.details["connection"] == str(holder)
    assert str(info.holder).startswith(address)
    assert str(info.holder).endswith(f", connection {holder}")
    assert info.details["mode"].startswith("X")
    assert float(info.details["idle_seconds"]) < 60


def test_inside_a_broken_transaction(using: str) -> None:
    """The list is asked for on a session of its own: the caller's transaction is none of its business."""
    connection: Any = connections[ALIASES[using]]
    with transaction.atomic(using=ALIASES[using]):
        connection.needs_rollback = True
        assert listed(using) == []
