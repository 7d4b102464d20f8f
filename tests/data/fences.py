"""Rows with a fence, for the tests of fenced writes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections

from tests.data.app.models import CashRegister, Register

if TYPE_CHECKING:
    from collections.abc import Iterator

EARLY, LATE = 5, 6  # the tokens of two holders, one after the other
LEASES = {"default": "leasetable", "postgres": "leasetable_postgres", "mariadb": "leasetable_mariadb"}


def rows(alias: str) -> Any:
    return Register.objects.using(alias)


def tills(alias: str) -> Any:
    """A model whose fence is in the table of its parent."""
    return CashRegister.objects.using(alias)


def register(alias: str, fence: int = 0, balance: int = 0, owner: str = "ann") -> Register:
    made: Register = rows(alias).create(owner=owner, balance=balance, fence=fence)
    return made


def till(alias: str, fence: int = 0, balance: int = 0, drawer: int = 0) -> CashRegister:
    made: CashRegister = tills(alias).create(owner="ann", balance=balance, drawer=drawer, fence=fence)
    return made


def stored(row: Any) -> tuple[int, int]:
    """Balance and fence as the database has them."""
    found: tuple[int, int] = type(row)._base_manager.using(row._state.db).values_list("balance", "fence").get(pk=row.pk)
    return found


@contextmanager
def sent(alias: str) -> Iterator[list[str]]:
    """The statements that went to the database, those of transactions included."""
    texts: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        texts.append(sql)
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(note):
        yield texts
