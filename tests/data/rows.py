"""What the tests of row locks share: the engines, rows to lock, and other processes that hold them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.data.row import row_lock
from tests.data.app.models import Account
from tests.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet

    from tests.child import Link

# database aliases: "default" is SQLite
ENGINES = ["postgres", "mariadb", "default"]
SERVERS = ["postgres", "mariadb"]
SLACK = 0.05  # seconds, R5


def accounts(using: str, *balances: int) -> list[int]:
    """New accounts, alone in their table; their primary keys."""
    Account.objects.using(using).all().delete()
    made = [Account.objects.using(using).create(owner=f"owner {n}", balance=b) for n, b in enumerate(balances)]
    return [account.pk for account in made]


def rows_of(using: str, pks: list[int]) -> QuerySet[Account]:
    return Account.objects.using(using).filter(pk__in=pks)


def hold(link: Link, using: str, pks: list[int], options: dict[str, Any]) -> None:
    """Hold rows until told to let go."""
    with row_lock(rows_of(using, pks), **options) as rows:
        link.say([row.pk for row in rows])
        link.hear()
    link.say("released")


@contextmanager
def held_elsewhere(using: str, pks: list[int], **options: Any) -> Iterator[Child]:
    """Another process holds the rows for the length of the block."""
    with Child(hold, using, pks, options) as child:
        assert child.hear() == pks
        yield child
        if not child.killed:
            child.say("release")
            assert child.hear() == "released"


@contextmanager
def took(least: float, most: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    assert least <= seconds <= most, f"{seconds:.3f} s"


def balances(using: str) -> list[int]:
    return list(Account.objects.using(using).order_by("pk").values_list("balance", flat=True))


def ask(using: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []
