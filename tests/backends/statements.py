"""Statements counted by the server itself: pg_stat_statements, MariaDB's statement digests."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    before = totals(using)
    yield found
    found.update(totals(using) - before)
