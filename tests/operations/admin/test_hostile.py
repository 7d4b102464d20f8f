"""Names and holders that somebody chose with bad intent are text, and nothing but text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from django_distlock import LockLost, advisory_lock
from django_distlock.operations.admin.admin import duration
from tests.operations.admin.pages import address, row_of
from tests.operations.admin.people import BREAK, LIST

if TYPE_CHECKING:
    from django.test import Client

EVIL = "<script>alert(1)</script>\r\nSet-Cookie: a=b\x1b[2J\u202egnp.exe\u2028\x00\ud800'\"&{{ 7|add:1 }}%s"


def test_every_page_shows_it_and_runs_nothing(boss: Client, two_aliases: None) -> None:
    with suppress(LockLost), advisory_lock(EVIL, using="memory", timeout=1):
        row = row_of("memory", EVIL)
        pages = [
            boss.get(LIST),
            boss.get(f"{LIST}?q=Set-Cookie"),
            boss.get(address(row)),
            boss.get(address(row, "break")),
            boss.post(LIST, {"action": "break_selected", "index": "0", "_selected_action": row.pk}),
        ]
        for page in pages:
            assert page.status_code == 200
            assert (
                "&lt;script&gt;alert(1)&lt;/script&gt;\\r\\nSet-Cookie: a=b\\x1b[2J\\u202egnp.exe\\u2028" in page.text
            )
            assert "<script>alert" not in page.text
            assert not set(page.text) & {"\x1b", "\u202e", "\u2028", "\x00", "\r"}
            assert "{{ 7|add:1 }}%s" in page.text
        after = boss.get(boss.post(BREAK, {"lock": row.pk}).url).text
        assert "was broken" in after
        assert "<script>alert" not in after
        index = boss.get("/admin/").text  # the log's last entries
        assert "Set-Cookie" in index
        assert "<script>alert" not in index


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (-3, 0.9, 59, 61, 3600, 90061)]
    assert shown == ["0 s", "0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]
