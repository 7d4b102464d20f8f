"""What is MySQL's and MariaDB's own.

MariaDB with innodb_snapshot_isolation, which is on from 11.6.2 (Debian 13): a statement that meets a row from after
the snapshot of its REPEATABLE READ transaction ends in error 1020, and the whole transaction with it. Keys are compared
with what is committed, not with a snapshot, so the statements on them must go through."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock.idempotency.storage.database import DatabaseStorage
from tests.faults.server import is_mariadb
from tests.idempotency.test_storages import ANSWER, claim_of, read
from tests.idempotency.world import Sender, Stage, forget_everything, sql
from tests.support.zones import autumn
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_distlock.idempotency.records import KeyClaim
    from tests.support.zones import Autumn

DB = "mariadb"
on_mariadb = pytest.mark.parametrize("alias", [DB])
STORAGE = DatabaseStorage(DB)


@pytest.fixture(params=["ON"])
def strict(request: pytest.FixtureRequest, databases: None, tables: None) -> Iterator[None]:
    if is_mariadb():
        sql(DB, f"SET SESSION innodb_snapshot_isolation = {request.param}")
    elif request.param == "ON":
        pytest.skip("a setting of MariaDB")
    sql(DB, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    yield
    connections[DB].close()
    forget_everything(DB)


def elsewhere(work: Callable[[DatabaseStorage], object]) -> None:
    """Run it on another connection, and commit."""
    with closing(connections[DB].copy()) as other:
        work(type("Elsewhere", (DatabaseStorage,), {"connection": other})(DB))


def snapshot(name: str) -> None:
    """Write a row, which the transaction must not lose, and read keys."""
    rows.write(DB, name)
    sql(DB, "SELECT count(*) FROM {keys}")


@pytest.mark.usefixtures("strict")
def test_fault_error_1020_ends_the_transaction(key: str) -> None:
    """What the tests below guard against."""
    claim = claim_of(key)
    STORAGE.claim(claim)
    with transaction.atomic(DB):
        snapshot(key)
        elsewhere(lambda storage: storage.renew(claim))
        with pytest.raises(OperationalError) as caught:
            sql(DB, "UPDATE {keys} SET phases = '' WHERE scope = %s", claim.scope)
        assert sql(DB, "SELECT @@in_transaction") == [(0,)]
    assert caught.value.args[0] == 1020
    assert rows.count(DB, key) == 0


WRITES: dict[str, Callable[[KeyClaim], object]] = {
    "save_phases": lambda claim: STORAGE.save_phases(claim, '{"charge": 7}'),
    "complete": lambda claim: STORAGE.complete(claim, ANSWER),
    "release": STORAGE.release,
    "renew": STORAGE.renew,
    "read": lambda claim: read(STORAGE, claim),
    "claim": lambda claim: STORAGE.claim(claim_of(claim.scope, "other")),
    "free": lambda claim: STORAGE.free([claim.scope]) == 0,  # it runs
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.usefixtures("strict")
def test_a_key_that_was_renewed_after_the_snapshot(key: str, what: str) -> None:
    """As the thread that renews claims does while a view runs. The view's transaction has read, and continues."""
    claim = claim_of(key)
    STORAGE.claim(claim)
    with transaction.atomic(DB):
        snapshot(key)
        elsewhere(lambda storage: storage.renew(claim))
        assert WRITES[what](claim)
    assert rows.count(DB, key) == 1


@pytest.mark.parametrize("strict", ["ON", "OFF"], indirect=True)
@pytest.mark.usefixtures("strict")
def test_a_key_that_was_claimed_after_the_snapshot(key: str) -> None:
    """The other request is seen. Naive code reads from its snapshot, and finds nothing to answer with."""
    claim = claim_of(key)
    with transaction.atomic(DB):
        snapshot(key)
        elsewhere(lambda storage: (storage.claim(claim), storage.complete(claim, ANSWER)))
        found = STORAGE.claim(claim_of(key, "other"))
    assert found is not None
    assert (found.owner, found.answer) == ("me", ANSWER)
    assert rows.count(DB, key) == 1


@pytest.mark.parametrize("what", ["take_over", "free"])
@pytest.mark.usefixtures("strict")
def test_a_key_that_ran_out_after_the_snapshot(key: str, what: str) -> None:
    claim, other = claim_of(key, claim_ttl=0), claim_of(key, "other")
    with transaction.atomic(DB):
        snapshot(key)
        elsewhere(lambda storage: storage.claim(claim))
        done = STORAGE.free([claim.scope]) if what == "free" else STORAGE.take_over(read(STORAGE, claim), other)
        assert done == 1
    assert rows.count(DB, key) == 1
    found = STORAGE.read(claim.scope)
    assert found is None if what == "free" else read(STORAGE, claim).owner == "other"


# -- a server whose time zone has daylight saving: one hour of the year occurs twice


@pytest.fixture
def clocks(site: Stage, alias: str) -> Iterator[Autumn]:
    with autumn(alias) as found:
        yield found


@on_mariadb
def test_a_request_in_flight_does_not_run_twice(site: Stage, sender: Sender, clocks: Autumn) -> None:
    """The repeated hour ends while the view runs, and the client sends its request again."""
    answers: list[int] = []

    def again(request: Any) -> None:
        site.during = lambda request: None
        clocks.over()
        answers.append(Sender(sender.key).post("retry").status_code)

    site.during = again
    clocks.after()
    assert sender.post("retry").status_code == 201
    assert answers == [409]
    assert site.effects == 1
