"""The ways to move money, side by side: what each one is called, what it does, what it promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """One way; `slug` is its part of the URL, `prevents` says whether it promises that no money is made or lost."""

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool


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
WAYS = (NONE, ROW, TABLE, ADVISORY)
