"""Double spending and crossed transfers, by processes that do nothing else, on every engine and by every way."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from django.db.models import Sum

from testproject.wallet.models import Account
from testproject.wallet.ways import WAYS
from tests.support.processes import Servant
from tests.support.sizes import LONG

from .movers import Mover

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.timeout(180), pytest.mark.tier2]

LOCKS = {"postgres": "postgres", "mariadb": "mysql", "default": "leasetable"}  # database alias -> lock alias
RIGHT = [way.slug for way in WAYS if way.prevents]
ROUNDS, START, FIRST, SECOND = 500 if LONG else 100, 1000, 600, 700
PROCESSES = 8


@pytest.fixture(scope="module")
def movers(django_db_setup: None) -> Iterator[list[Servant]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Servant(Mover)) for _ in range(PROCESSES)]


@pytest.fixture(params=LOCKS)
def database(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    yield request.param
    Account.objects.using(request.param).all().delete()


def accounts(database: str, count: int) -> list[int]:
    Account.objects.using(database).bulk_create([Account(owner="ann", balance=START) for _ in range(count)])
    return list(Account.objects.using(database).values_list("pk", flat=True))


def two_withdrawals(
    movers: list[Servant], database: str, way: str, rounds: int, folder: Path
) -> list[tuple[bool, bool, int]]:
    """For each round: was the first paid, was the second, and what is left."""
    pks = accounts(database, rounds)
    shared = folder / "rounds"
    shared.write_bytes(bytes(16))
    bank = [way, database, LOCKS[database]]
    for place, amount in enumerate((FIRST, SECOND)):
        movers[place].start("withdraw", bank, pks, amount, str(shared), place)
    first, second = movers[0].hear(60), movers[1].hear(60)
    left = Account.objects.using(database).values_list("balance", flat=True)
    return list(zip(first, second, left, strict=True))


@pytest.mark.parametrize("way", RIGHT)
def test_of_two_withdrawals_at_once_exactly_one_is_paid(
    movers: list[Servant], database: str, way: str, tmp_path: Path
) -> None:
    rounds = two_withdrawals(movers, database, way, ROUNDS, tmp_path)
    assert len(rounds) == ROUNDS
    assert set(rounds) <= {(True, False, START - FIRST), (False, True, START - SECOND)}


def test_without_a_lock_both_are_paid(movers: list[Servant], database: str, tmp_path: Path) -> None:
    """The fault is real: without it the other tests would prove nothing."""
    rounds = two_withdrawals(movers, database, "none", 100, tmp_path)
    assert [(first, second) for first, second, _ in rounds].count((True, True)) > 0


# 10,000 by row locks on the servers; the others are there to show that they work, at what they can do in a few seconds.
TRANSFERS = dict.fromkeys([("postgres", "row"), ("mariadb", "row")], 10_000 if LONG else 800)


@pytest.mark.parametrize("way", RIGHT)
def test_transfers_in_both_directions_neither_make_nor_lose_money(
    movers: list[Servant], database: str, way: str
) -> None:
    """And no caller hears of a deadlock."""
    pks = accounts(database, 40)
    times = TRANSFERS.get((database, way), 800 if LONG else 240)
    for mover in movers:
        mover.start("transfer", [way, database, LOCKS[database]], pks, times // PROCESSES)
    outcomes = [mover.hear(120) for mover in movers]
    assert {kind for outcome in outcomes for kind in outcome} == {"done", "refused"}
    assert sum(outcome["done"] + outcome["refused"] for outcome in outcomes) == times
    assert Account.objects.using(database).aggregate(total=Sum("balance"))["total"] == START * len(pks)
    assert not Account.objects.using(database).filter(balance__lt=0).exists()
