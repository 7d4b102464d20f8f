"""Ten thousand locks, and a backend that does not answer."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from django_distlock import advisory_lock, held_locks
from tests.engines.redis.server import BACKEND, Own
from tests.faults.server import ask
from tests.operations.admin.pages import BREAK, LIST, address, rows, shown, text, told

if TYPE_CHECKING:
    from pathlib import Path

    from django.test import Client

pytestmark = pytest.mark.tier2
LISTINGS = """
SELECT query, sum(calls)::int FROM pg_stat_statements WHERE query LIKE '%%pg_locks%%'
AND query NOT LIKE '%%pg_stat_statements%%' GROUP BY query
"""


def test_ten_thousand_locks_are_one_statement_and_one_page(boss: Client) -> None:
    held_locks("postgres")  # connects
    held = connections["postgres"].copy()
    try:
        held.cursor().execute("SELECT pg_advisory_lock(g) FROM generate_series(1, 10000) g")
        with override_settings(DISTLOCK={"postgres": settings.DISTLOCK["postgres"]}):
            before = Counter(dict(ask("postgres", LISTINGS)))
            page = boss.get(f"{LIST}?o=0&p=2").text
            # those on tables and rows, too
            assert list((Counter(dict(ask("postgres", LISTINGS))) - before).values()) == [1]
    finally:
        held.close()
    assert len(rows(page)) == 100
    assert "10000 held locks" in text(page)


def test_a_backend_that_does_not_answer_is_a_red_line(boss: Client, tmp_path: Path) -> None:
    """Stopped while the page is open: the others are still listed, and nothing tells where the server is."""
    with Own(tmp_path) as server:
        aliases = {"ours": {"BACKEND": BACKEND, "OPTIONS": {"url": server.url}}, "memory": settings.DISTLOCK["memory"]}
        with override_settings(DISTLOCK=aliases), advisory_lock("still here", using="memory", timeout=1):
            with advisory_lock("before", using="ours", timeout=5):
                detail, yes = address(boss, "before"), shown(boss, "before")
            server.signal(signal.SIGSTOP)
            try:
                page, gone = boss.get(LIST).text, boss.get(detail).text
                (message,) = told(boss.post(BREAK, {"lock": yes}))
            finally:
                server.signal(signal.SIGCONT)
    assert [each["name"] for each in rows(page)] == ["still here"]
    assert "ours : this backend does not answer" in text(page)
    assert "This lock cannot be shown now" in gone
    assert message.startswith("ours does not answer (")
    assert message.endswith("); nothing was broken there.")
    assert str(server.port) not in page + gone + message
