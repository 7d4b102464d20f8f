"""Double spending: withdrawals and transfers, the same check and write under each way's lock."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connection, transaction
from django.db.models import Sum

from django_distlock import lock_all, row_lock, table_lock
from testproject.replay.crowd import times
from testproject.replay.processes import SECONDS, Team
from testproject.replay.scene import Bars, Column, Figures, Option, Scene, Stage, Way

from .models import Account

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    Accounts = dict[int, Account]
    Move = tuple[int, ...]  # account and amount: withdraw; source, target and amount: transfer; nothing: wait

PROCESSES, TIMEOUT = 4, 30.0
LOOK_UP = 0.001  # seconds between the look at a balance and the write: the limit of the day is looked up elsewhere
OWNER = "replay"  # nobody's account: what the replay makes, it clears away
START, FIRST, SECOND = 1000, 600, 700

NONE = Way(
    "none",
    "No lock",
    "",
    "Read the balance, compare, write the difference. Two that both read before either writes both pay out.",
    prevents=False,
)
ROW = Way(
    "row",
    "Row lock",
    "with row_lock(accounts)",
    "The rows concerned, locked in the order of their keys. Nobody can write them, not even code that knows nothing of "
    "the lock; other accounts are free. (SQLite has one lock for all.)",
    prevents=True,
)
TABLE = Way(
    "table",
    "Table lock",
    "with table_lock(Account)",
    "The whole table: one movement at a time, and nobody else writes any account meanwhile.",
    prevents=True,
)
ADVISORY = Way(
    "advisory",
    "Advisory locks",
    "with lock_all(names)",
    "One name per account, all of them at once. They keep out who takes the same names, whatever the database.",
    prevents=True,
)


def withdraw(way: str, pk: int, amount: int) -> bool:
    """Whether the money was there and has been paid out. Account.DoesNotExist for an unknown account."""
    with HOLDS[way]([pk]) as accounts:
        return spend(accounts[pk], amount)


def transfer(way: str, source: int, target: int, amount: int) -> bool:
    """Whether the money was there and has been moved. Account.DoesNotExist for an unknown account."""
    with HOLDS[way]([source, target]) as accounts:
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


def by_key(pks: Sequence[int], rows: Iterable[Account] | None = None) -> Accounts:
    found = {account.pk: account for account in (Account.objects.filter(pk__in=pks) if rows is None else rows)}
    if missing := set(pks) - set(found):
        raise Account.DoesNotExist(f"There is no account {min(missing)}.")
    return found


@contextmanager
def unlocked(pks: Sequence[int]) -> Iterator[Accounts]:
    yield by_key(pks)


@contextmanager
def rows_locked(pks: Sequence[int]) -> Iterator[Accounts]:
    with row_lock(Account.objects.filter(pk__in=pks), timeout=TIMEOUT) as rows:
        yield by_key(pks, rows)


@contextmanager
def table_locked(pks: Sequence[int]) -> Iterator[Accounts]:
    with table_lock(Account, timeout=TIMEOUT):
        yield by_key(pks)


@contextmanager
def names_locked(pks: Sequence[int]) -> Iterator[Accounts]:
    """The transaction is inside the locks, so that it is committed before they are given back (R10)."""
    names = [Account.objects.advisory_row_lock(pk) for pk in pks]
    with lock_all(names, timeout=TIMEOUT), transaction.atomic():
        yield by_key(pks)


HOLDS = {NONE.slug: unlocked, ROW.slug: rows_locked, TABLE.slug: table_locked, ADVISORY.slug: names_locked}


def move(pipe: Connection, barrier: Barrier, way: str, moves: Sequence[Move]) -> list[tuple[Any, float]]:
    """What one process does: did it go well, or the error, and how long did it take? Withdrawals wait for each other,
    so that those from one account come at the same time; transfers begin together."""
    connection.ensure_connection()
    outcomes = []
    barrier.wait(SECONDS)
    for one in moves:
        if len(one) < 3:
            barrier.wait(SECONDS)
        began, done = time.monotonic(), None
        try:
            if one:
                done = withdraw(way, *one) if len(one) == 2 else transfer(way, *one)
        except Exception as error:
            done = f"{type(error).__name__}: {error}"
        outcomes.append((done, time.monotonic() - began))
    connection.close()
    return outcomes


class Wallet(Scene):
    name = "wallet"
    help = "Pairs of withdrawals and random transfers by several processes: nothing may be paid twice or get lost."
    ways = (NONE, ROW, TABLE, ADVISORY)
    options = (
        Option("pairs", 200, "pairs of withdrawals per way"),
        Option("transfers", 2000, "transfers per way"),
        Option("accounts", 10, "accounts that the transfers are between", least=2),
    )
    columns = (
        Column("Pairs", lambda way: way["pairs"]["count"]),
        Column("Both paid", lambda way: way["pairs"]["both"], alarm=True),
        Column("None paid", lambda way: way["pairs"]["neither"]),
        Column("Transfers", lambda way: way["transfers"]["count"]),
        Column("Done", lambda way: way["transfers"]["done"]),
        Column("Money made", lambda way: way["transfers"]["drift"], alarm=True),
        Column("Failed", "failed", alarm=True),
        Column("Per second", lambda way: f"{way['transfers']['per_second']:.0f}"),
        Column("Transfer ms", lambda way: "{p50:.0f} / {p99:.0f}".format(**way["transfers"]["times"])),
    )
    bars = (
        Bars(
            "Accounts overdrawn by {pairs[count]} pairs of withdrawals",
            lambda way: way["pairs"]["both"],
            lambda way: str(way["pairs"]["both"]),
            alarm=lambda way: way["pairs"]["both"],
        ),
        Bars(
            "Transfers per second (and the money that they made)",
            lambda way: way["transfers"]["per_second"],
            lambda way: f"{way['transfers']['per_second']:.0f} ({way['transfers']['drift']:+})",
            alarm=lambda way: way["transfers"]["drift"],
        ),
    )

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        barrier = multiprocessing.get_context("spawn").Barrier(PROCESSES)
        with Team(f"{__name__}:move", PROCESSES, barrier) as team:
            yield Stage(lambda way: self.act(team, way, given), {"processes": PROCESSES})
        Account.objects.filter(owner=OWNER).delete()

    def act(self, team: Team, way: Way, given: Mapping[str, Any]) -> Figures:
        pairs, errors = withdraw_pairs(team, way.slug, given["pairs"])
        transfers, more = random_transfers(team, way.slug, given["transfers"], given["accounts"])
        errors += more
        return {"pairs": pairs, "transfers": transfers, "failed": len(errors), "errors": sorted(set(errors))}

    def shown(self, way: Figures) -> bool:
        return bool(way["pairs"]["both"] or way["transfers"]["drift"])

    def problems(self, way: Figures) -> Iterator[str]:
        if not way["prevents"]:
            return
        if way["errors"]:
            yield f"{way['failed']} failed: {', '.join(way['errors'])}."
        if way["pairs"]["both"] or way["pairs"]["neither"] or way["pairs"]["wrong"]:
            told = "{both} were both paid, {neither} neither, {wrong} balances are wrong".format(**way["pairs"])
            yield f"of {way['pairs']['count']} pairs {told}."
        if way["transfers"]["drift"]:
            yield f"the transfers made {way['transfers']['drift']}."

    def story(self, way: Figures) -> str:
        pairs, drift = way["pairs"], way["transfers"]["drift"]
        money = f"made {drift}" if drift > 0 else f"lost {-drift}" if drift else "kept the money together"
        return f"{way['title']}: {pairs['both']} of {pairs['count']} pairs were both paid; the transfers {money}."


def withdraw_pairs(team: Team, way: str, count: int) -> tuple[Figures, list[str]]:
    """From each of `count` accounts of 1000 withdraw 600 and 700 at once: how often both or neither were paid, and how
    often the balance does not fit what was paid. And the errors."""
    pks = fresh_accounts(OWNER, count, START)
    moves: list[Move] = [(pk, amount) for pk in pks for amount in (FIRST, SECOND)]
    outcomes, _ = done_by(team, way, moves + [()] * (-len(moves) % PROCESSES))
    done = [outcome for outcome, _ in outcomes]
    paid = [(done[2 * number] is True, done[2 * number + 1] is True) for number in range(count)]
    balances = dict(Account.objects.filter(pk__in=pks).values_list("pk", "balance"))
    fits = [
        balances[pk] == START - FIRST * first - SECOND * second for pk, (first, second) in zip(pks, paid, strict=True)
    ]
    found = {"both": paid.count((True, True)), "neither": paid.count((False, False)), "wrong": fits.count(False)}
    return {"count": count} | found, [error for error in done if isinstance(error, str)]


def random_transfers(team: Team, way: str, count: int, accounts: int) -> tuple[Figures, list[str]]:
    """`drift` is the money that they made, or lost if below zero; `done` of them found enough of it."""
    pks = fresh_accounts(OWNER, accounts, START)
    moves = [(*random.sample(pks, 2), random.randint(1, 500)) for _ in range(count)]
    outcomes, seconds = done_by(team, way, moves)
    total = Account.objects.filter(pk__in=pks).aggregate(total=Sum("balance"))["total"]
    figures = {
        "count": count,
        "done": sum(done is True for done, _ in outcomes),
        "drift": total - START * accounts,
        "per_second": round(count / seconds, 1),
        "times": times([seconds for _, seconds in outcomes]),
    }
    return figures, [error for error, _ in outcomes if isinstance(error, str)]


def done_by(team: Team, way: str, moves: Sequence[Move]) -> tuple[list[tuple[Any, float]], float]:
    """What came of each, and the seconds it took; neighbours are done by different processes."""
    began = time.monotonic()
    for number in range(PROCESSES):
        team.send(number, way, moves[number::PROCESSES])
    found: dict[int, tuple[Any, float]] = {}
    for number in range(PROCESSES):
        found.update(zip(range(number, len(moves), PROCESSES), team.receive(number), strict=True))
    return [found[number] for number in range(len(moves))], time.monotonic() - began


def fresh_accounts(owner: str, count: int, balance: int) -> list[int]:
    Account.objects.filter(owner=owner).delete()
    Account.objects.bulk_create([Account(owner=owner, balance=balance) for _ in range(count)])
    return list(Account.objects.filter(owner=owner).values_list("pk", flat=True))
