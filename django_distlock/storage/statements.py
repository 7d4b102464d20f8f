"""Run the SQL of the tables of leases and keys: queries, and changes that wait for nobody."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, transaction

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import PATIENCE
from django_distlock.schema import NOW

from .dialect import contended, nowait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Seconds between the attempts at a row that another transaction has locked, or that changes hands meanwhile. A beat or
# a claim locks a row for less than a millisecond.
PAUSES = (0.002, 0.005, 0.01, 0.05)
# A release is sent once, by a page that is going away: it is worth a longer wait.
RELEASE_PAUSES = (*PAUSES, 0.1, 0.2, 0.4)


def text_for(alias: str, template: str) -> str:
    """The statement with the clock of this database for ``{now}``. UnsupportedOperation if its SQL is not known."""
    connection = connections[alias]
    if connection.vendor not in NOW:
        raise UnsupportedOperation(
            f"Edit locks and browser locks need PostgreSQL, MySQL, MariaDB or SQLite; {alias!r} is "
            f"{connection.display_name}."
        )
    return template.replace("{now}", NOW[connection.vendor])


def query(alias: str, text: str, parameters: Any) -> list[Any]:
    """The rows of a query. BackendUnavailable if it fails."""
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(text_for(alias, text), parameters)
            return list(cursor.fetchall())
    except Error as error:
        raise unavailable(alias) from error


def attempt(alias: str, text: str, parameters: Any, locked: str = "") -> list[Any] | int | None:
    """Run a statement that changes rows. Returns its rows, or the number of changed ones if it returns none.

    None if another transaction was first, or has a row locked; that does not break the transaction of the caller.
    ``locked`` is a query of the row, for Oracle's MySQL: its INSERT and UPDATE always wait for a lock, a query can fail
    at once.
    """
    connection: Any = connections[alias]
    savepoint = transaction.atomic(using=alias) if connection.in_atomic_block else nullcontext()
    try:
        with savepoint, connection.cursor() as cursor:
            if locked and connection.vendor == "mysql" and not connection.mysql_is_mariadb:
                cursor.execute(f"{locked} FOR UPDATE NOWAIT", parameters)
                cursor.fetchall()
            cursor.execute(nowait(connection) + text_for(alias, text), parameters)
            # all rows: on SQLite the statement ends with the last one
            return int(cursor.rowcount) if cursor.description is None else list(cursor.fetchall())
    except Error as error:
        if contended(error):
            return None
        raise unavailable(alias) from error


def delete(alias: str, table: str, key: str, condition: str, parameters: dict[str, Any], batch: int = 1000) -> int:
    """Delete at most ``batch`` rows; those that another transaction has locked stay. Returns their number."""
    chosen, before = f"SELECT {key} FROM {table} WHERE {condition} LIMIT {batch:d}", ""  # noqa: S608
    vendor = connections[alias].vendor
    if vendor == "mysql":  # a DELETE that searches an index locks more than it deletes
        keys = sorted(found for (found,) in query(alias, chosen, parameters))
        if not keys:
            return 0
        names = {f"key{number}": found for number, found in enumerate(keys)}
        chosen, parameters = marks(names), {**parameters, **names}
    elif vendor == "postgresql":
        # named, or a plan that joins in a loop would choose again for each row, and delete them all
        before = f"WITH chosen AS MATERIALIZED ({chosen} FOR UPDATE SKIP LOCKED) "
        chosen = f"SELECT {key} FROM chosen"  # noqa: S608
    text = f"{before}DELETE FROM {table} WHERE {key} IN ({chosen}) AND {condition}"  # noqa: S608
    gone = attempt(alias, text, parameters)
    return gone if isinstance(gone, int) else 0


def marks(names: dict[str, Any] | Sequence[Any]) -> str:
    """Placeholders for an IN: by the names of parameters, or by position."""
    return ", ".join(f"%({name})s" for name in names) if isinstance(names, dict) else ", ".join(["%s"] * len(names))


def tries(pauses: Iterable[float]) -> Iterator[None]:
    """One, and one after each pause of about so many seconds, not for all callers the same.

    They end after :data:`PATIENCE`: beside a long writer on SQLite each waits for the busy timeout of the driver.
    """
    until = clock.now() + PATIENCE
    yield
    for pause in pauses:
        if clock.now() >= until:
            return
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - not a secret
        yield


def unavailable(alias: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"The tables of django-distlock in the database {alias!r} cannot be used. If they are missing, add "
        f"'django_distlock' to INSTALLED_APPS and run `python manage.py migrate --database={alias}`."
    )
