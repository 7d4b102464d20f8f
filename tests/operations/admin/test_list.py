"""The list of held locks and the pages about one: columns, search, sorting, pages, and nothing that does harm."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from django.db import connections
from django.test import override_settings

from django_distlock import LockLost, advisory_lock
from django_distlock.models import LockEvent
from django_distlock.operations.recorder import recorder
from tests.operations.admin.pages import ALIASES, BREAK, LIST, address, chosen, names, rows, shown, text, told
from tests.operations.world import CANARY, DOWN, without_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")
EVIL = "<script>alert(1)</script>\r\nSet-Cookie: a=b\x1b[2J\u202egnp.exe\u2028\x00\ud800'\"&{{ 7|add:1 }}%s"
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt;\\r\\nSet-Cookie: a=b\\x1b[2J\\u202egnp.exe\\u2028"
# The first lock is the oldest.
QUERIES = [
    ("using=memory", ["Report", "account:7", "account:12", "a.*b"]),
    ("using=memory&o=-mode", ["account:7", "a.*b", "account:12", "Report"]),  # shared first, then by name
    ("using=memory&o=held_since", ["a.*b", "account:12", "account:7", "Report"]),  # the youngest first
    (
        "o=waiters.-backend.held_since",
        ["a.*b", "account:12", "account:7", "Report", "lease"],
    ),  # nobody waits; then backends, backwards
    ("using=memory&o=fence.x.-", ["Report", "account:7", "account:12", "a.*b"]),
    ("q=ACCOUNT", ["account:7", "account:12"]),
    ("q=a.*b", ["a.*b"]),  # no pattern
    ("q=nothing", []),
    ("mode=shared&using=memory", ["account:7"]),
    ("mode=exclusive&q=account", ["account:12"]),
    ("waiters=no&using=leasetable", ["lease"]),
    ("waiters=yes&using=memory", []),
    ("older=3600&using=memory", []),
    ("older=junk&q=report", ["Report"]),
    ("kind=named&q=report", ["Report"]),
    ("kind=relation&using=memory", []),
]


def test_rows_search_filters_and_sorting(as_: Callable[..., Client]) -> None:
    viewer = as_("viewer")
    assert "No lock is held." in viewer.get(LIST).text
    with ExitStack() as stack:
        for name, shared in (("Report", False), ("account:7", True), ("account:12", False), ("a.*b", False)):
            stack.enter_context(advisory_lock(name, using="memory", shared=shared, timeout=1))
        stack.enter_context(advisory_lock("lease", using="leasetable", timeout=1))
        for query, expected in QUERIES:
            assert names(viewer, query) == expected, query
        assert "No held lock matches." in viewer.get(f"{LIST}?q=nothing").text
        page = as_("boss").get(f"{LIST}?o=name.held_since").text
    found = {row["name"]: row for row in rows(page)}
    report, lease = found["Report"], found["lease"]
    assert (report["backend"], report["mode"], found["account:7"]["mode"]) == ("memory", "exclusive", "shared")
    for row in (report, lease):
        assert str(os.getpid()) in row["holder"]
        assert re.match(r"\d+ s since 2\d\d\d-\d\d-\d\d ", row["held_since"])
        assert re.fullmatch(r"\d\d s", row["ttl_left"])
        assert row["waiters"] == "0"
    assert int(lease["fence"]) > 0
    # screen readers are told how it is sorted, and a strict policy is kept
    assert page.count('aria-sort="descending"') + page.count('aria-sort="ascending"') == 1
    assert (page.count('aria-sort="none"'), "<caption" in page) == (6, True)
    assert not re.search(r"<style|\sstyle=|\sonclick=|<script(?![^>]*src=)", page)


def test_pages_and_the_total(boss: Client) -> None:
    with ExitStack() as stack:
        for number in range(230):
            stack.enter_context(advisory_lock(f"n{number:03}", using="memory"))
        assert names(boss, "using=memory&o=name") == [f"n{number:03}" for number in range(100)]
        for page in ("3", "4", "9" * 30):  # beyond the last is the last
            assert names(boss, f"using=memory&o=name&p={page}") == [f"n{number:03}" for number in range(200, 230)]
        assert names(boss, "using=memory&o=name&p=-1&q=n00") == [f"n{number:03}" for number in range(10)]
        # if one backend was chosen, nobody has asked the others
        totals = {"": "230 held locks", "using=memory": "230 held locks Show all", "q=n00": "10 held locks 230 total"}
        for query, total in totals.items():
            assert total in text(boss.get(f"{LIST}?{query}").text)
        # an action that was asked for when there were more locks
        asked = boss.post(f"{LIST}?using=memory&p=3&q=n0", chosen(address(boss, "n003")))
        assert "Break this lock?" in asked.text


def test_a_backend_that_does_not_answer_is_a_red_line(boss: Client) -> None:
    """The server goes away while the page is open: the others are still listed, and nothing tells where it is."""
    memory = ALIASES["memory"]
    with override_settings(DISTLOCK={"ours": memory}), advisory_lock("before", using="ours", timeout=5):
        detail, yes = address(boss, "before"), shown(boss, "before")
    down = override_settings(DISTLOCK={"ours": DOWN, "memory": memory})
    with down, advisory_lock("still here", using="memory", timeout=1):
        page, gone = boss.get(LIST).text, boss.get(detail).text
        (message,) = told(boss.post(BREAK, {"lock": yes}))
    assert [each["name"] for each in rows(page)] == ["still here"]
    assert "ours : this backend does not answer" in text(page)
    assert "This lock cannot be shown now" in gone
    assert re.fullmatch(r"ours does not answer \(\w+\); nothing was broken there\.", message)
    assert not re.search(rf"{CANARY}|127\.0\.0\.1", page + gone)


def test_odd_parameters_do_no_harm(boss: Client) -> None:
    assert boss.get(f"{LIST}?key=x&key__regex=(a%2B)%2Bb").status_code == 200
    assert boss.get(f"{LIST}?q={'%00' * 3}&p=x&o=-").status_code == 200
    assert boss.get(f"{LIST}?o={'.'.join(['-name', 'held_since', 'name'] * 600)}&p={'9' * 5000}").status_code == 200
    index = boss.get("/admin/").text
    assert (f'href="{LIST}"' in index, f"{LIST}add/" in index) == (True, False)
    assert boss.get(f"{LIST}add/").status_code == 404


def test_names_that_were_chosen_with_bad_intent_are_text(boss: Client) -> None:
    with suppress(LockLost), advisory_lock(EVIL, using="memory", timeout=1):
        (link,) = re.findall(rf'href="({LIST}[^"/]+/)change/', boss.get(LIST).text)
        paths = (LIST, f"{LIST}?q=Set-Cookie", f"{link}change/", f"{link}break/")
        for page in (*map(boss.get, paths), boss.post(LIST, chosen(link))):
            assert page.status_code == 200
            assert SAFE in page.text
            assert "{{ 7|add:1 }}%s" in page.text
            assert "<script>alert" not in page.text
            assert not set(page.text) & {"\x1b", "\u202e", "\u2028", "\x00", "\r"}
        (yes,) = re.findall(r'name="lock" value="([^"]+)"', boss.get(f"{link}break/").text)
        after = boss.get(boss.post(BREAK, {"lock": yes}).url).text
        assert "was broken" in after
        for page in (after, boss.get("/admin/").text):  # the log's last entries
            assert ("Set-Cookie" in page, "<script>alert" in page) == (True, False)


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_a_session_is_ended_with_all_that_it_holds(boss: Client, using: str, name: str) -> None:
    name = name[-40:].rpartition("[")[2]
    with (
        override_settings(DISTLOCK={using: ALIASES[using]}),
        advisory_lock(name, using=using, timeout=5),
        advisory_lock(f"{name}-beside", using=using, timeout=5),
    ):
        detail, question = address(boss, name), address(boss, name, "break")
        pages = [text(boss.get(path).text) for path in (detail, question)]
    assert "Also held by this session" in pages[0]
    assert ("Last statement 20" in pages[0]) == (using == "postgres")  # a date, and not seconds since 1970
    assert "Besides this one it holds: " in pages[1]
    assert "a transaction that is open in it is rolled back" in pages[1]


def test_the_history_is_shown_or_a_red_line(boss: Client, name: str) -> None:
    name, connection = name[-40:], connections["default"]
    with override_settings(DISTLOCK_HISTORY_DAYS=1), advisory_lock(name, using="memory"):
        page = address(boss, name)
        assert recorder.flush(10)
        found = boss.get(page).text
        assert all(part in found for part in ("Recent history", "<td><bdi>acquired</bdi></td>"))
        # the table is missing, or the database that a router chose for it is down
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            with without_table("default", LockEvent):
                answer = boss.get(page)
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert answer.status_code == 200
    assert "The history cannot be read (OperationalError); the log says more." in answer.text
    recorder.flush(10)
    LockEvent.rows.all().delete()
