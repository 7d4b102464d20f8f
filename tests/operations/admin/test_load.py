"""Ten thousand locks, and a backend that does not answer."""

from __future__ import annotations

import logging
import signal
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.contrib.messages import get_messages
from django.db import connections
from django.test import Client, override_settings

from django_distlock import advisory_lock, held_locks
from tests.engines.redis.server import Own
from tests.faults.server import ask
from tests.operations.admin.pages import address, names, row_of, rows, text
from tests.operations.admin.people import BREAK, LIST
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.tier2

SESSIONS, EACH = 4, 2500
LISTINGS = """
SELECT query, sum(calls)::int FROM pg_stat_statements WHERE query LIKE '%%pg_locks%%'
AND query NOT LIKE '%%pg_stat_statements%%' GROUP BY query
"""


@pytest.fixture
def ten_thousand(databases: None) -> Iterator[list[Any]]:
    """Locks of PostgreSQL, held by several sessions."""
    held_locks("postgres")  # connects
    held = [connections["postgres"].copy() for _ in range(SESSIONS)]
    try:
        for number, connection in enumerate(held):
            with connection.cursor() as cursor:
                first = number * EACH
                cursor.execute("SELECT pg_advisory_lock(g) FROM generate_series(%s, %s) g", [first, first + EACH - 1])
        yield held
    finally:
        for connection in held:
            connection.close()


def listings() -> Counter[str]:
    """Calls of the statements that list locks, by the server's own count."""
    return Counter(dict(ask("postgres", LISTINGS)))


@pytest.mark.usefixtures("ten_thousand")
@pytest.mark.alone
def test_ten_thousand_locks_are_a_page_in_less_than_a_second(boss: Client) -> None:
    with override_settings(DISTLOCK={"postgres": settings.DISTLOCK["postgres"]}):
        before = listings()
        began = time.perf_counter()
        page = boss.get(f"{LIST}?o=0&p=2")
        took = time.perf_counter() - began
        # for all of them, those on tables and rows too
        assert list((listings() - before).values()) == [1]
        assert len(rows(page.text)) == 100
        assert f"{SESSIONS * EACH} held locks" in text(page.text)
        assert len(page.content) < 200_000
    within(took, 1.0, what="a page of 10,000 locks")


def most_memory(client: Client, query: str) -> int:
    """Bytes that a page takes at most, beyond what was there."""
    client.get(f"{LIST}?{query}")  # what is made once
    tracemalloc.start()
    try:
        client.get(f"{LIST}?{query}")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


PAGES = ("", "p=2&o=0", "q=7&o=-4", "waiters=no&o=3.-2", "older=10")
ALL_BUT = """
SELECT pg_advisory_unlock((classid::bigint << 32) | objid::bigint) FROM pg_locks
WHERE locktype = 'advisory' AND pid = pg_backend_pid() LIMIT %s
"""


def test_a_page_takes_the_same_memory_for_any_number_of_locks(boss: Client, ten_thousand: list[Any]) -> None:
    """A page has a hundred rows, with 10,000 locks as with 200."""
    with override_settings(DISTLOCK={"default": settings.DISTLOCK["postgres"]}):
        many = [most_memory(boss, query) for query in PAGES]
        for connection in ten_thousand:
            with connection.cursor() as cursor:
                cursor.execute(ALL_BUT, [EACH - 200 // SESSIONS])
        assert len(held_locks("default")[0].locks) == 200
        few = [most_memory(boss, query) for query in PAGES]
    # a record for each lock would be 9 MB; some of these pages are not full with few
    assert max(many) < max(few) + 100_000, (many, few)


def asked(method: str, client: Client, *args: Any) -> Any:
    """In a thread: by the same person, with a client of its own."""
    other = Client()
    other.cookies = client.cookies
    try:
        return getattr(other, method)(*args)
    finally:
        connections.close_all()


def test_a_backend_that_does_not_answer_is_a_red_line(
    as_: Callable[..., Client], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped while the page is open: the others are still listed, and nothing tells where the server is."""
    client = as_("boss")
    with Own(tmp_path) as server:
        canary = "hunter2-canary"
        server.client.config_set("requirepass", canary)
        server.client.auth(canary)
        own = {"BACKEND": "django_distlock.backends.redis.RedisBackend"}
        own |= {"OPTIONS": {"url": server.url.replace("redis://", f"redis://:{canary}@")}}
        aliases = {"ours": own, "memory": settings.DISTLOCK["memory"]}
        with override_settings(DISTLOCK=aliases), advisory_lock("still here", using="memory", timeout=1):
            with advisory_lock("before", using="ours", timeout=5):
                assert set(names(client)) == {"still here", "before"}
                row = row_of("ours", "before")
            server.signal(signal.SIGSTOP)
            try:
                with caplog.at_level(logging.DEBUG):
                    began = time.perf_counter()
                    with ThreadPoolExecutor(2) as others:
                        detail = others.submit(asked, "get", client, address(row))
                        broken = others.submit(asked, "post", client, BREAK, {"lock": row.pk})
                        page = client.get(LIST)
                        took = time.perf_counter() - began
                    detail, broken = detail.result(), broken.result()
            finally:
                server.signal(signal.SIGCONT)
        assert (page.status_code, detail.status_code, broken.status_code) == (200, 200, 302)
        assert [each["name"] for each in rows(page.text)] == ["still here"]
        assert 'class="error"' in page.text
        assert "ours : this backend does not answer" in text(page.text)
        assert "This lock cannot be shown now" in detail.text
        (message,) = map(str, get_messages(broken.wsgi_request))
        assert message.startswith("ours does not answer (")
        assert message.endswith("); nothing was broken there.")
        for told in (page.text, detail.text, message):
            assert canary not in told
            assert str(server.port) not in told
        assert canary not in caplog.text
        within(took, 4.0, what="the page with a hung server")
