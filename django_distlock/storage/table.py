"""A table whose rows are leases: queries, and attempts at rows that other transactions may have locked."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import Error, transaction

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.schema import NOW

from .dialect import contended, filled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
# Seconds between the attempts at a row that is locked; after the last one it counts as kept by another transaction. A
# beat or a claim locks the row for less than a millisecond.
PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)
# A release is sent once, by a page that is going away: it is worth a longer wait.
RELEASE_PAUSES = (*PAUSES, 0.1, 0.2, 0.4)
LOCKED: Final = object()


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """A table by its name in the database; ``of`` says in messages what its rows are, ``key`` is its primary key."""

    name: str
    of: str
    key: str = "digest"

    def text_for(self, connection: BaseDatabaseWrapper, template: str) -> str:
        """The statement for this database. UnsupportedOperation for a database whose SQL is not known."""
        if connection.vendor not in NOW:
            raise UnsupportedOperation(
                f"{self.of.capitalize()} need PostgreSQL, MySQL, MariaDB or SQLite; {connection.alias!r} is "
                f"{connection.display_name}."
            )
        return filled(template, connection.vendor)

    def fetch(self, connection: BaseDatabaseWrapper, text: str, parameters: Any) -> list[Any]:
        """The rows of a query. BackendUnavailable if it fails."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(self.text_for(connection, text), parameters)
                return list(cursor.fetchall())
        except Error as error:
            raise self.unavailable() from error

    def fail_if_locked(self, connection: Any, key: str) -> None:
        """On Oracle's MySQL, whose INSERT and UPDATE always wait for a lock: fail at once if the row has one."""
        if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
            text = f"SELECT {self.key} FROM {self.name} WHERE {self.key} = %s FOR UPDATE NOWAIT"  # noqa: S608
            with connection.cursor() as cursor:
                cursor.execute(text, [key])

    def patiently(
        self, connection: BaseDatabaseWrapper, attempt: Callable[[], T], pauses: Sequence[float] = PAUSES
    ) -> T | object:
        """Repeat ``attempt`` while another transaction keeps the row; LOCKED in the end."""
        for pause in (*pauses, None):
            found: T | object
            try:
                if connection.in_atomic_block:  # an error must not break the transaction of the caller
                    with transaction.atomic(using=connection.alias):
                        found = attempt()
                else:
                    found = attempt()
            except Error as error:
                if not contended(error):
                    raise self.unavailable() from error
                found = LOCKED
            if found is not LOCKED:
                return found
            if pause is not None:
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - not a secret
        return LOCKED

    def unavailable(self) -> BackendUnavailable:
        return BackendUnavailable(f"The table of {self.of} cannot be used.")
