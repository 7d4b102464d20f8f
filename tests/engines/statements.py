"""Statements counted by the server itself: pg_stat_statements, MariaDB's statement digests."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.conftest import eventually
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

PG = """
SELECT query, calls FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND query NOT LIKE '%%pg_stat_statements%%'
AND query NOT LIKE '%%pg_locks%%'
"""
MARIADB = """
SELECT DIGEST_TEXT, COUNT_STAR FROM performance_schema.events_statements_summary_by_digest
WHERE SCHEMA_NAME = DATABASE() AND DIGEST_TEXT NOT LIKE '%%performance_schema%%'
AND DIGEST_TEXT NOT LIKE '%%information_schema%%' COLLATE utf8mb4_general_ci
"""


# Whose statement has not ended, and does not wait for a lock either.
BUSY = """
SELECT COUNT(*) FROM information_schema.PROCESSLIST
WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND COMMAND <> 'Sleep' AND COALESCE(STATE, '') <> 'User lock'
"""


def totals(using: str) -> Counter[str]:
    """Calls of every statement in this database since the server started, but for those that only look."""
    found: Counter[str] = Counter()
    for text, calls in ask(using, PG if using == "postgres" else MARIADB):
        found[_plain(text)] += calls  # prepared and direct, the server counts one text apart
    return found


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()


@contextmanager
def counted(using: str) -> Iterator[Counter[str]]:
    """Fills a Counter with the statements that the server executed during the block."""
    found: Counter[str] = Counter()
    before = settled(using)
    yield found
    found.update(settled(using) - before)


def settled(using: str) -> Counter[str]:
    """:func:`totals`, once MariaDB has counted what it has answered: it replies first."""
    seen = [totals(using)]

    def quiet() -> bool:
        seen.append(totals(using))
        return seen[-1] == seen[-2] and not ask(using, BUSY)[0][0]

    if using != "postgres":
        eventually(quiet, "the server goes on", pause=0.02)
    return seen[-1]
