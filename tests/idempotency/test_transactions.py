"""Claims inside transactions that have begun before them, and the signals."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.http import HttpResponse

from django_distlock.idempotency import signals
from tests.faults.server import is_mariadb
from tests.idempotency.views import SHAPES
from tests.idempotency.world import Running, Sender, at_once, every_database, expire, on_servers, sql
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.world import Stage


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("alias", ["mariadb"])
def test_repeatable_read_on_mariadb(site: Stage, sender: Sender, strict: bool) -> None:
    """A transaction that has read before does not see the winner's commit, but for a locking read. As it is on Debian
    13, the server would end the transaction because of the winner's row (error 1020)."""
    if strict and not is_mariadb():
        pytest.skip("a setting of MariaDB")
    first = sender.post("atomic")
    connections["mariadb"].ensure_connection()
    sql("mariadb", "DELETE FROM {keys}")
    sql("mariadb", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if strict:
        sql("mariadb", "SET SESSION innodb_snapshot_isolation = ON")
    try:
        with warnings.catch_warnings(), transaction.atomic("mariadb"):
            warnings.simplefilter("ignore")  # R13: the lock in front is inside a transaction that has read
            assert rows.count("mariadb", "anything") == 0  # the snapshot is taken
            (winner,) = at_once(lambda: sender.post("atomic"), 1)
            assert sql("mariadb", "SELECT count(*) FROM {keys}") == [(0,)], "there is no fault to guard against"
            second = SHAPES["atomic"](same_request(winner))
    finally:
        connections["mariadb"].close()
    assert second["Idempotency-Replayed"] == "true"
    assert first.status_code == second.status_code == 201
    assert site.effects == 2  # one for each winner


def same_request(response: Any) -> Any:
    """The request that was answered, as it came: nothing on it but the URL it matched and its user."""
    request = response.wsgi_request
    del request.idempotency
    return request


@every_database
def test_a_savepoint_around_the_claim(site: Stage, sender: Sender) -> None:
    """The claim is made inside an atomic block of the caller: a conflict must not break that transaction (PostgreSQL),
    nor may the view's rollback of its savepoint free the key."""

    def roll_back_inside(request: Any) -> None:
        with transaction.atomic(site.alias):
            rows.write(site.alias, site.name)
            transaction.set_rollback(True, using=site.alias)

    site.during = roll_back_inside
    sender.post("atomic")
    answered = sender.post("atomic")
    with transaction.atomic(site.alias), transaction.atomic(site.alias):
        again = SHAPES["atomic"](same_request(answered))
        rows.write(site.alias, site.name)
    assert again["Idempotency-Replayed"] == "true"
    assert site.effects == 2


@on_servers
@pytest.mark.parametrize(("shape", "status"), [("atomic", 201), ("atomic", 422), ("atomic_impatient", 201)])
def test_two_copies_that_are_answered_at_the_same_time(site: Stage, sender: Sender, shape: str, status: int) -> None:
    """The lock in front belongs to the transaction of the one, until it ends. Naive code tells the other one that the
    first request still runs, which has been done long ago."""
    answered = sender.post(shape)
    data = {"other": 1} if status == 422 else None
    with transaction.atomic(site.alias):
        first = SHAPES[shape](same_request(answered))
        (second,) = at_once(lambda: sender.post(shape, data), 1)
    assert first["Idempotency-Replayed"] == "true"
    assert (second.status_code, second.has_header("Idempotency-Replayed")) == (status, status == 201)
    assert site.effects == 1


@on_servers
def test_a_copy_that_comes_while_an_old_key_is_used_anew(site: Stage, sender: Sender, key: str) -> None:
    """It has expired, and another request has the key: the old answer is not the answer now."""
    sender.post("atomic")
    expire(site.alias)
    with Running(site, lambda: Sender(key).post("atomic")):
        assert sender.post("atomic").json()["code"] == "in_flight"
    assert site.effects == 2


@pytest.fixture
def received() -> Iterator[list[str]]:
    names = [name for name in vars(signals) if name.startswith("key_")]
    found: list[str] = []

    def receiver_of(name: str) -> Any:
        return lambda **facts: found.append(name)

    receivers = {name: receiver_of(name) for name in names}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    yield found
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


def test_signals(site: Stage, sender: Sender, key: str, received: list[str]) -> None:
    with Running(site, lambda: Sender(key).post()):
        sender.post()
    sender.post()
    sender.post(data={"other": 1})
    site.answer = lambda request: HttpResponse("x" * 300_000)
    sender.post("retry")
    sender.post("retry")
    sql(site.alias, "UPDATE {keys} SET state = 'claimed'")
    expire(site.alias)
    sender.post("retry")
    assert received == [
        *("key_claimed", "key_conflict", "key_replayed", "key_mismatch"),
        *("key_claimed", "key_tombstone", "key_expired", "key_claimed"),
    ]


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_receiver_that_fails_changes_nothing(site: Stage, sender: Sender, shape: str) -> None:
    """Neither for the first request, whose key is claimed by then, nor for its replay."""

    def fail(**facts: Any) -> None:
        raise RuntimeError("boom")

    heard = (signals.key_claimed, signals.key_replayed)
    for signal in heard:
        signal.connect(fail)
    try:
        answers = [sender.post(shape) for _ in range(2)]
    finally:
        for signal in heard:
            signal.disconnect(fail)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert site.effects == 1
