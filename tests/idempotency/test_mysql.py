"""MySQL's and MariaDB's own: rows from after the snapshot of the transaction (error 1020), and times of day."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock.idempotency.storage.database import DatabaseStorage
from tests.faults.server import is_mariadb
from tests.idempotency.test_storages import ANSWER, claim_of, read
from tests.idempotency.world import Running, Sender, Stage, forget_everything, sql
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


def other(claim: KeyClaim) -> KeyClaim:
    return replace(claim, owner="other")


WRITES: dict[str, Callable[[KeyClaim], object]] = {
    "save_phases": lambda claim: STORAGE.save_phases(claim, '{"charge": 7}'),
    "complete": lambda claim: STORAGE.complete(claim, ANSWER),
    "release": STORAGE.release,
    "renew": STORAGE.renew,
    "read": lambda claim: read(STORAGE, claim),
    "claim": lambda claim: STORAGE.claim(other(claim)),
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


NEWER: dict[str, Callable[[KeyClaim], object]] = {
    "free": lambda claim: STORAGE.free([claim.scope]),
    "take_over": lambda claim: STORAGE.take_over(read(STORAGE, claim), other(claim)),
    "see": lambda claim: STORAGE.claim(other(claim)) == read(STORAGE, claim),
}


@pytest.mark.parametrize(("strict", "what"), [*(("ON", what) for what in NEWER), ("OFF", "see")], indirect=["strict"])
@pytest.mark.usefixtures("strict")
def test_a_key_that_was_claimed_after_the_snapshot(key: str, what: str) -> None:
    """The other request is seen. Naive code reads from its snapshot, and finds nothing to answer with."""
    claim = claim_of(key, claim_ttl=0)
    with transaction.atomic(DB):
        snapshot(key)
        elsewhere(lambda storage: storage.claim(claim))
        assert NEWER[what](claim)
    assert rows.count(DB, key) == 1
    found = STORAGE.read(claim.scope)
    assert (found and found.owner) == {"free": None, "take_over": "other", "see": "me"}[what]


@on_mariadb
def test_a_copy_on_oracle_mysql(
    site: Stage, sender: Sender, key: str, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    """Its INSERT always waits for a lock, so a query asks first; MariaDB stands in for it."""
    for connection in (type(connections[alias]), connections[alias]):
        monkeypatch.setattr(connection, "mysql_is_mariadb", False)
    with Running(site, lambda: Sender(key).post("atomic")) as running:
        assert sender.post("atomic").json()["code"] == "in_flight"
        assert running.answer is None, "it waited for the first one"
    assert running.answer.status_code == 201
    assert sender.post("atomic")["Idempotency-Replayed"] == "true"
    assert site.effects == 1


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
