"""Another process that wants the same tables and rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, OperationalError, connections, transaction

from django_distlock import DeadlockDetected, DistlockError, table_lock
from django_distlock.data.rows.lock import row_lock
from tests.data.app.models import Account
from tests.data.world import another, ask, rows_of
from tests.faults.server import is_mariadb
from tests.support.processes import Servant
from tests.transactions.rows import server_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.child import Link


class Rival(Servant):
    """What it is told to do, it does in a process of its own."""

    def __init__(self) -> None:
        super().__init__(Deeds)

    def lock(self, using: str, *models: str, mode: str = "write", timeout: float | None = 5) -> str:
        """Lock and hold the tables: "held", or the class of the error."""
        return str(self.do("lock", using, models, mode, timeout))

    def leave(self) -> None:
        """Give up what it took last."""
        self.do("leave")

    def gets(self, using: str, *models: str, mode: str = "write") -> bool:
        """Can it have the lock now?"""
        outcome = self.lock(using, *models, mode=mode, timeout=0)
        if outcome == "held":
            self.leave()
        return outcome == "held"

    def reads(self, using: str) -> bool:
        return bool(self.do("attempt", using, "SELECT * FROM dataapp_account LIMIT 1"))

    def writes(self, using: str, table: str = "dataapp_account") -> bool:
        return bool(self.do("attempt", using, f"DELETE FROM {table} WHERE id = -1"))

    @contextmanager
    def hold(self, using: str, pks: list[int], **options: Any) -> Iterator[None]:
        """It has these rows."""
        assert self.do("hold", using, pks, options) == pks
        yield
        self.do("release")

    def reset(self) -> None:
        """Give up whatever it holds, and forget what it still has to say."""
        self.start("reset")
        while self.hear() != "reset":
            pass


class Deeds:
    """What a rival does; the answer is what the method returns. What it holds stands on a stack."""

    def __init__(self, link: Link) -> None:
        self.held: list[Any] = []

    def _take(self, block: Any) -> Any:
        value = block.__enter__()
        self.held.append(block)
        return value

    def leave(self) -> None:
        self.held.pop().__exit__(None, None, None)

    def release(self) -> None:
        while self.held:
            self.leave()

    def reset(self) -> str:
        self.release()
        return "reset"

    def session(self, using: str) -> int:
        return server_id(using)

    # -- tables

    def lock(self, using: str, models: list[str], mode: str, timeout: float | None) -> str:
        connections[using].ensure_connection()
        try:
            self._take(table_lock(*map(model_named, models), mode=mode, using=using, timeout=timeout))
        except DistlockError as error:
            return type(error).__name__
        return "held"

    def begin(self, using: str, model: str) -> None:
        """Write a row in a transaction and leave it open."""
        self._take(transaction.atomic(using=using))
        model_named(model)._default_manager.using(using).create()

    def insert(self, using: str, model: str) -> str:
        """Write a row, however long that waits."""
        try:
            model_named(model)._default_manager.using(using).create()
        except Error as error:
            return type(error).__name__
        return "done"

    def attempt(self, using: str, query: str) -> bool:
        """Does the statement pass without a wait for a lock?"""
        least = 0 if is_mariadb() else 1
        at_once = {
            "default": "PRAGMA busy_timeout = 0",
            "postgres": "SET lock_timeout = '100ms'",
            "mariadb": f"SET SESSION lock_wait_timeout = {least}, SESSION innodb_lock_wait_timeout = {least}",
        }
        with another(using) as connection:
            ask(connection, at_once[using])
            try:
                ask(connection, query)
            except OperationalError:
                return False
        return True

    # -- rows

    def hold(self, using: str, pks: list[int], options: dict[str, Any]) -> list[int]:
        return [row.pk for row in self._take(row_lock(rows_of(using, pks), **options))]

    def write(self, using: str, pk: int, balance: int) -> None:
        account = self._take(row_lock(Account, pk=pk, using=using))
        account.balance = balance
        account.save()

    def add(self, using: str, pk: int, times: int) -> None:
        """Read and write, ``times`` times."""
        for _ in range(times):
            with transaction.atomic(using=using):
                with row_lock(Account, pk=pk, using=using) as account:
                    pass
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
        outcome = self.take(using, [pk], 1)
        self.release()
        return outcome


def model_named(name: str) -> Any:
    return apps.get_model("dataapp", name)
