"""Withdraw and transfer: the same check and write, under each way's lock."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import transaction

from django_distlock import lock_all, row_lock, table_lock

from .models import Account
from .ways import ADVISORY, NONE, ROW, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Accounts = dict[int, Account]


@dataclass(frozen=True, slots=True)
class Bank:
    """Accounts in a database, moved by one way; `locks` is the lock alias that the advisory way uses."""

    way: str
    database: str = "default"
    locks: str = "default"
    timeout: float = 30.0

    def withdraw(self, pk: int, amount: int) -> bool:
        """Whether the money was there and has been paid out. Account.DoesNotExist for an unknown account."""
        with HOLDS[self.way](self, [pk]) as accounts:
            return spend(accounts[pk], amount)

    def transfer(self, source: int, target: int, amount: int) -> bool:
        """Whether the money was there and has been moved. Account.DoesNotExist for an unknown account."""
        if source == target:
            raise ValueError("A transfer needs two accounts.")
        with HOLDS[self.way](self, [source, target]) as accounts:
            if not spend(accounts[source], amount):
                return False
            accounts[target].balance += amount
            accounts[target].save(update_fields=["balance"])
            return True

    def read(self, pks: Sequence[int]) -> Accounts:
        return by_key(Account.objects.using(self.database).filter(pk__in=pks), pks)


def spend(account: Account, amount: int) -> bool:
    """Every caller that comes here before another one has written sees the same balance: alone, this is the race."""
    if account.balance < amount:
        return False
    account.balance -= amount
    account.save(update_fields=["balance"])
    return True


def by_key(rows: Iterator[Account] | Sequence[Account], pks: Sequence[int]) -> Accounts:
    found = {account.pk: account for account in rows}
    if missing := set(pks) - set(found):
        raise Account.DoesNotExist(f"There is no account {min(missing)}.")
    return found


@contextmanager
def unlocked(bank: Bank, pks: Sequence[int]) -> Iterator[Accounts]:
    yield bank.read(pks)


@contextmanager
def rows_locked(bank: Bank, pks: Sequence[int]) -> Iterator[Accounts]:
    with row_lock(Account.objects.using(bank.database).filter(pk__in=pks), timeout=bank.timeout) as rows:
        yield by_key(rows, pks)


@contextmanager
def table_locked(bank: Bank, pks: Sequence[int]) -> Iterator[Accounts]:
    with table_lock(Account, using=bank.database, timeout=bank.timeout):
        yield bank.read(pks)


@contextmanager
def names_locked(bank: Bank, pks: Sequence[int]) -> Iterator[Accounts]:
    """The transaction is inside the locks, so that it is committed before they are given back (R10)."""
    names = [Account.objects.advisory_row_lock(pk, using=bank.locks) for pk in pks]
    with lock_all(names, timeout=bank.timeout), transaction.atomic(using=bank.database):
        yield bank.read(pks)


HOLDS = {NONE.slug: unlocked, ROW.slug: rows_locked, TABLE.slug: table_locked, ADVISORY.slug: names_locked}
