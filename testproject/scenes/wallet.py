"""Double spending: withdrawals and transfers, the same check and write under each way's lock."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connection, transaction
from django.db.models import Sum

from django_distlock import lock_all, row_lock, table_lock
from testproject.replay.processes import FORK, SECONDS, Team
from testproject.replay.scene import Column, Figures, Option, Scene, Way, way

from .models import Account

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    Accounts = dict[int, Account]
    Move = tuple[int, ...]  # account and amount: withdraw; source, target and amount: transfer; nothing: wait

PROCESSES, TIMEOUT = 4, 30.0
LOOK_UP = 0.001  # seconds between the look at a balance and the write: the limit of the day is looked up elsewhere
OWNER = "replay"  # nobody's account: what the replay makes, it clears away
START, FIRST, SECOND = 1000, 600, 700
ACCOUNTS = 10  # that the transfers are between


@way("No lock", prevents=False)
@contextmanager
def none(pks: Sequence[int]) -> Iterator[Accounts]:
    """Read the balance, compare, write the difference. Two that both read before either writes both pay out."""
    yield by_key(pks, Account.objects.filter(pk__in=pks))


@way("Row lock", "with row_lock(accounts)")
@contextmanager
def row(pks: Sequence[int]) -> Iterator[Accounts]:
    """The rows concerned, locked in the order of their keys. Nobody can write them, not even code that knows nothing of
    the lock; other accounts are free. (SQLite has one lock for all.)"""
    with row_lock(Account.objects.filter(pk__in=pks), timeout=TIMEOUT) as rows:
        yield by_key(pks, rows)


@way("Table lock", "with table_lock(Account)")
@contextmanager
def table(pks: Sequence[int]) -> Iterator[Accounts]:
    """The whole table: one movement at a time, and nobody else writes any account meanwhile."""
    with table_lock(Account, timeout=TIMEOUT):
        yield by_key(pks, Account.objects.filter(pk__in=pks))


@way("Advisory locks", "with lock_all(names)")
@contextmanager
def advisory(pks: Sequence[int]) -> Iterator[Accounts]:
    """One name per account, all of them at once. They keep out who takes the same names, whatever the database."""
    names = [Account.objects.advisory_row_lock(pk) for pk in pks]
    # The transaction is inside the locks, so that it is committed before they are given back (R10).
    with lock_all(names, timeout=TIMEOUT), transaction.atomic():
        yield by_key(pks, Account.objects.filter(pk__in=pks))


def by_key(pks: Sequence[int], rows: Iterable[Account]) -> Accounts:
    found = {account.pk: account for account in rows}
    if missing := set(pks) - set(found):
        raise Account.DoesNotExist(f"There is no account {min(missing)}.")
    return found


def withdraw(way: Way, pk: int, amount: int) -> bool:
    """Whether the money was there and has been paid out. Account.DoesNotExist for an unknown account."""
    with way.run([pk]) as accounts:
        return spend(accounts[pk], amount)


def transfer(way: Way, source: int, target: int, amount: int) -> bool:
    """Whether the money was there and has been moved. Account.DoesNotExist for an unknown account."""
    with way.run([source, target]) as accounts:
        if not spend(accounts[source], amount):
            return False
        accounts[target].balance += amount
        accounts[target].save(update_fields=["balance"])
        return True


def spend(account: Account, amount: int) -> bool:
    """Every caller that comes here before another one has written sees the same balance: alone, this is the race."""
    if account.balance < amount:
        return False
    time.sleep(LOOK_UP)
    account.balance -= amount
    account.save(update_fields=["balance"])
    return True


class Wallet(Scene):
    name = "wallet"
    help = "Pairs of withdrawals and random transfers by several processes: nothing may be paid twice or get lost."
    ways = (none, row, table, advisory)
    options = (
        Option("pairs", 200, "pairs of withdrawals per way"),
        Option("transfers", 2000, "transfers per way"),
    )
    columns = (
        Column("Pairs", "pairs"),
        Column("Both paid", "both", alarm=True),
        Column("None paid", "neither", alarm=True),
        Column("Transfers", "transfers"),
        Column("Money made", "drift", alarm=True),
        Column("Transfers per second", "per_second", pattern="{:.0f}"),
    )
    fault = ("both", "drift")
    plots = (("both", "Accounts overdrawn by {pairs} pairs of withdrawals"), ("per_second", "Transfers per second"))

    story = "{both} of {pairs} pairs were both paid; money made by {transfers} transfers: {drift}"

    def act(self, way: Way, pairs: int, transfers: int) -> list[Figures]:
        withdrawn = withdraw_pairs(way, pairs)
        moved = random_transfers(way, transfers)
        Account.objects.filter(owner=OWNER).delete()
        return [withdrawn | moved | {"errors": withdrawn["errors"] + moved["errors"]}]


def withdraw_pairs(way: Way, count: int) -> Figures:
    """From each of `count` accounts of 1000 withdraw 600 and 700 at once: how often both or neither were paid."""
    pks = fresh_accounts(OWNER, count, START)
    moves: list[Move] = [(pk, amount) for pk in pks for amount in (FIRST, SECOND)]
    done, errors = done_by_all(way, moves + [()] * (-len(moves) % PROCESSES))
    neither = Account.objects.filter(pk__in=pks, balance=START).count()
    return {"pairs": count, "both": done - (count - neither), "neither": neither, "errors": errors}


def random_transfers(way: Way, count: int) -> Figures:
    """`drift` is the money that they made, or lost if below zero."""
    pks = fresh_accounts(OWNER, ACCOUNTS, START)
    began = time.monotonic()
    _, errors = done_by_all(way, [(*random.sample(pks, 2), random.randint(1, 500)) for _ in range(count)])
    rate = count / (time.monotonic() - began)
    drift = Account.objects.filter(pk__in=pks).aggregate(total=Sum("balance"))["total"] - START * ACCOUNTS
    return {"transfers": count, "drift": drift, "per_second": round(rate, 1), "errors": errors}


def done_by_all(way: Way, moves: Sequence[Move]) -> tuple[int, list[str]]:
    """How many were done, and the errors; neighbours are done by different processes."""
    barrier = FORK.Barrier(PROCESSES)
    with Team() as team:
        for number in range(PROCESSES):
            team.start(move, barrier, way, moves[number::PROCESSES])
        results = [member.result() for member in team]
    return sum(done for done, _ in results), sorted({error for _, errors in results for error in errors})


def move(pipe: Connection, barrier: Barrier, way: Way, moves: Sequence[Move]) -> tuple[int, set[str]]:
    """What one process does. Withdrawals wait for each other, so that those from one account come at the same time;
    transfers begin together."""
    connection.ensure_connection()
    done, errors = 0, set()
    barrier.wait(SECONDS)
    for one in moves:
        if len(one) < 3:
            barrier.wait(SECONDS)
        try:
            done += bool(one) and (withdraw if len(one) == 2 else transfer)(way, *one)
        except Exception as error:
            errors.add(f"{type(error).__name__}: {error}")
    return done, errors


def fresh_accounts(owner: str, count: int, balance: int) -> list[int]:
    Account.objects.filter(owner=owner).delete()
    Account.objects.bulk_create([Account(owner=owner, balance=balance) for _ in range(count)])
    return list(Account.objects.filter(owner=owner).values_list("pk", flat=True))
