"""What the tests of row locks share: the engines, rows to lock, and other processes that hold them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.apps.registry import Apps
from django.db import OperationalError, connections, models, transaction

from django_distlock import DeadlockDetected
from django_distlock.data import LockingManager
from django_distlock.data.rows.lock import row_lock
from tests.data.app.models import Account, Node
from tests.support.processes import Servant
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet

    from tests.support.child import Link

# database aliases: "default" is SQLite
ENGINES = ["postgres", "mariadb", "default"]
SERVERS = ["postgres", "mariadb"]
SLACK = 0.05  # seconds, R5


class Legacy(models.Model):
    """A table that a test makes, kept by MyISAM; unknown to the app, which has a table for each of its models."""

    amount = models.IntegerField(default=0)
    objects = LockingManager()

    class Meta:
        app_label = "legacy"
        apps = Apps()
        db_table = "dataapp_legacy"

    def __str__(self) -> str:
        return str(self.amount)


@contextmanager
def kept_by_myisam() -> Iterator[None]:
    ask("mariadb", "CREATE TABLE dataapp_legacy (id integer PRIMARY KEY, amount integer NOT NULL) ENGINE=MyISAM")
    try:
        yield
    finally:
        ask("mariadb", "DROP TABLE dataapp_legacy")


def accounts(using: str, *balances: int) -> list[int]:
    """New accounts, alone in their table; their primary keys."""
    Account.objects.using(using).all().delete()
    made = [Account.objects.using(using).create(owner=f"owner {n}", balance=b) for n, b in enumerate(balances)]
    return [account.pk for account in made]


def rows_of(using: str, pks: list[int]) -> QuerySet[Account]:
    return Account.objects.using(using).filter(pk__in=pks)


def balances(using: str) -> list[int]:
    return list(Account.objects.using(using).order_by("pk").values_list("balance", flat=True))


def ask(using: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall()) if cursor.description else []


def took(least: float, most: float) -> AbstractContextManager[None]:
    @contextmanager
    def measured() -> Iterator[None]:  # inside, where timing.calls_within() finds it
        start = time.monotonic()
        yield
        within(time.monotonic() - start, most, least=least)

    return measured()


class Deeds:
    """What a rival does when it is told so; the answer is what the method returns."""

    def __init__(self, link: Link) -> None:
        self.link, self.open = link, ExitStack()

    def hold(self, using: str, pks: list[int], options: dict[str, Any]) -> list[int]:
        return [row.pk for row in self.open.enter_context(row_lock(rows_of(using, pks), **options))]

    def hold_for(self, using: str, pks: list[int], seconds: float) -> str:
        self.link.say(self.hold(using, pks, {}))
        time.sleep(seconds)
        self.open.close()
        return "released"

    def write(self, using: str, pk: int, balance: int) -> None:
        account = self.open.enter_context(row_lock(Account, pk=pk, using=using))
        account.balance = balance
        account.save()

    def lock_table(self, using: str) -> None:
        """With the engine's own words, on a connection of its own."""
        connection = connections.create_connection(using)
        begin = {
            "postgres": "BEGIN; LOCK TABLE dataapp_account IN ACCESS EXCLUSIVE MODE",
            "mariadb": "LOCK TABLES dataapp_account WRITE",
        }
        connection.cursor().execute(begin[using])
        self.open.callback(connection.close)

    def insert_child(self, parent: int, seconds: float) -> str:
        """A row that refers to another; PostgreSQL, waiting no longer than so many seconds."""
        try:
            with transaction.atomic(using="postgres"):
                ask("postgres", f"SET LOCAL lock_timeout = '{seconds}s'")
                Node.objects.using("postgres").create(name="child", parent_id=parent)
        except OperationalError:
            return "busy"
        return "inserted"

    def release(self) -> None:
        self.open.close()

    def add(self, using: str, pk: int, times: int, locked: bool) -> None:
        """Read and write, ``times`` times."""
        for _ in range(times):
            with transaction.atomic(using=using):
                if locked:
                    account = self.enter(row_lock(Account, pk=pk, using=using))
                else:
                    account = Account.objects.using(using).get(pk=pk)
                account.balance += 1
                account.save()

    def take(self, using: str, pks: list[int], times: int) -> str:
        """Lock all the rows at once, again and again; whether a deadlock was found."""
        try:
            for _ in range(times):
                with row_lock(rows_of(using, pks)):
                    pass
        except DeadlockDetected:
            return "deadlock"
        return "done"

    def take_next(self, using: str, pk: int) -> str:
        """Lock one more row while others are held; whether a deadlock was found."""
        try:
            self.enter(row_lock(Account, pk=pk, using=using))
        except DeadlockDetected as error:
            self.open.__exit__(type(error), error, None)
            return "deadlock"
        self.open.close()
        return "done"

    @staticmethod
    def enter(lock: Any) -> Any:
        """The value of a lock that lasts as long as the transaction around it."""
        with lock as value:
            return value


class Rival(Servant):
    """Another process that holds rows."""

    def __init__(self) -> None:
        super().__init__(Deeds)

    @contextmanager
    def hold(self, using: str, pks: list[int], **options: Any) -> Iterator[None]:
        assert self.do("hold", using, pks, options) == pks
        yield
        self.do("release")


@contextmanager
def pair() -> Iterator[tuple[Rival, Rival]]:
    with Rival() as one, Rival() as other:
        yield one, other
