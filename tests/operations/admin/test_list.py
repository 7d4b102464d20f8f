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
from django_distlock.models import LockEvent, LockName
from django_distlock.operations.recorder import recorder
from tests.operations.admin.pages import ALIASES, BREAK, LIST, address, key_of, names, rows, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")
EVIL = "<script>alert(1)</script>\r\nSet-Cookie: a=b\x1b[2J\u202egnp.exe\u2028\x00\ud800'\"&{{ 7|add:1 }}%s"
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt;\\r\\nSet-Cookie: a=b\\x1b[2J\\u202egnp.exe\\u2028"


@pytest.fixture
def held(two_aliases: None) -> Iterator[None]:
    """The first one is the oldest."""
    with ExitStack() as stack:
        for name, shared in (("Report", False), ("account:7", True), ("account:12", False), ("a.*b", False)):
            stack.enter_context(advisory_lock(name, using="memory", shared=shared, timeout=1))
        stack.enter_context(advisory_lock("lease", using="leasetable", timeout=1))
        yield


@pytest.mark.usefixtures("held")
def test_a_row_says_who_holds_what_since_when(boss: Client) -> None:
    page = boss.get(f"{LIST}?o=-1.2").text
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
    assert page.count('aria-sort="none"') == 6
    assert "<caption" in page
    assert not re.search(r"<style|\sstyle=|\sonclick=|<script(?![^>]*src=)", page)


# who may only look has no column for choosing: the columns are counted from the name
QUERIES = [
    ("using=memory", ["Report", "account:7", "account:12", "a.*b"]),
    ("using=memory&o=-5", ["account:7", "a.*b", "account:12", "Report"]),  # shared first, then by name
    ("using=memory&o=1", ["a.*b", "account:12", "account:7", "Report"]),  # the youngest first
    ("o=2.-4.0", ["a.*b", "account:12", "account:7", "Report", "lease"]),  # nobody waits; then backends, backwards
    ("using=memory&o=99.x", ["Report", "account:7", "account:12", "a.*b"]),
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
    ("kind=table&using=memory", []),
]


def test_search_filters_and_sorting(as_: Callable[..., Client], request: pytest.FixtureRequest) -> None:
    viewer = as_("viewer")
    assert "No lock is held." in viewer.get(LIST).text
    request.getfixturevalue("held")
    for query, expected in QUERIES:
        assert names(viewer, query) == expected, query
    assert "No held lock matches." in viewer.get(f"{LIST}?q=nothing").text


def test_pages_and_the_total(boss: Client) -> None:
    with ExitStack() as stack:
        for number in range(230):
            stack.enter_context(advisory_lock(f"n{number:03}", using="memory"))
        first = boss.get(f"{LIST}?using=memory&o=1").text
        assert [row["name"] for row in rows(first)] == [f"n{number:03}" for number in range(100)]
        assert "230 held locks" in text(first)
        for page in ("3", "4", "9" * 30):  # beyond the last is the last
            assert names(boss, f"using=memory&o=1&p={page}") == [f"n{number:03}" for number in range(200, 230)]
        assert names(boss, "using=memory&o=1&p=-1&q=n00") == [f"n{number:03}" for number in range(10)]
        assert "10 results ( 230 total )" in text(boss.get(f"{LIST}?q=n00").text)
        # of the other backends nobody has asked
        assert "10 results ( Show all )" in text(boss.get(f"{LIST}?q=n00&using=memory").text)
        # an action that was asked for when there were more locks
        chosen = {"action": "break_selected", "index": "0", "_selected_action": key_of(address(boss, "n003"))}
        assert "Break this lock?" in boss.post(f"{LIST}?using=memory&p=3&q=n0", chosen).text


def test_fields_and_odd_parameters_do_no_harm(boss: Client) -> None:
    assert boss.get(f"{LIST}?key=x").status_code == 302
    assert boss.get(f"{LIST}?key__regex=(a%2B)%2Bb").status_code in (302, 400)
    assert boss.get(f"{LIST}?q={'%00' * 3}&p=x&o=-").status_code == 200
    assert boss.get(f"{LIST}?o={'9' * 5000}.-{'9' * 5000}").status_code == 200  # no int() takes so many digits
    with override_settings(DISTLOCK={"postgres": ALIASES["postgres"]}):
        # a column sorts once: PostgreSQL refuses to sort by thousands of expressions
        assert 'class="error"' not in boss.get(f"{LIST}?o={'.'.join(['-4', '3', '4'] * 600)}").text
    index = boss.get("/admin/").text
    assert f'href="{LIST}"' in index
    assert f"{LIST}add/" not in index
    assert boss.get(f"{LIST}add/").status_code == 404


def test_names_that_were_chosen_with_bad_intent_are_text(boss: Client) -> None:
    with suppress(LockLost), advisory_lock(EVIL, using="memory", timeout=1):
        (link,) = re.findall(rf'href="({LIST}[^"/]+/)change/', boss.get(LIST).text)
        chosen = {"action": "break_selected", "index": "0", "_selected_action": key_of(link)}
        paths = (LIST, f"{LIST}?q=Set-Cookie", f"{link}change/", f"{link}break/")
        for page in (*map(boss.get, paths), boss.post(LIST, chosen)):
            assert page.status_code == 200
            assert SAFE in page.text
            assert "{{ 7|add:1 }}%s" in page.text
            assert "<script>alert" not in page.text
            assert not set(page.text) & {"\x1b", "\u202e", "\u2028", "\x00", "\r"}
        after = boss.get(boss.post(BREAK, {"lock": key_of(link)}).url).text
        assert "was broken" in after
        for page in (after, boss.get("/admin/").text):  # the log's last entries
            assert "Set-Cookie" in page
            assert "<script>alert" not in page


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_a_session_is_ended_with_all_that_it_holds(boss: Client, using: str, name: str) -> None:
    """And where two names have one key, that is told before one of them is broken."""
    name = name[-40:].rpartition("[")[2]
    with (
        override_settings(DISTLOCK={using: ALIASES[using]}),
        advisory_lock(name, using=using, timeout=5),
        advisory_lock(f"{name}-beside", using=using, timeout=5),
    ):
        detail = address(boss, name)
        key = key_of(detail).split("/")[1]
        note = {"seen_at": 0, "session": 0, "since": 0, "alias": using, "holder": "-", "other": "<i>twin"}
        database = {"mysql": "mariadb"}.get(using, using)
        note = LockName.rows.using(database).create(key=key, name=name, **note)
        try:
            pages = [text(boss.get(path).text) for path in (detail, address(boss, name, "break"))]
        finally:
            note.delete(using=database)
        for page in pages:
            assert "Another name has the same key: <i>twin ." in page
        assert "Also held by this session" in pages[0]
        assert ("Last statement 20" in pages[0]) == (using == "postgres")  # a date, and not seconds since 1970
        assert "Besides this one it holds: " in pages[1]
        assert "a transaction that is open in it is rolled back" in pages[1]


def test_the_history_is_shown_with_a_plot_or_a_red_line(boss: Client, name: str) -> None:
    name = name[-40:]
    connection = connections["default"]
    with override_settings(DISTLOCK_HISTORY_DAYS=1), advisory_lock(name, using="memory"):
        page = address(boss, name)
        assert recorder.flush(10)
        for part in ("<svg", "Recent history", "<td>acquired</td>"):
            assert part in boss.get(page).text
        # the table is missing, or the database that a router chose for it is down
        with connection.schema_editor() as editor:
            editor.alter_db_table(LockEvent, LockEvent._meta.db_table, "elsewhere")
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            answer = boss.get(page)
            assert answer.status_code == 200
            assert "The history cannot be read (OperationalError); the log says more." in answer.text
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
            with connection.schema_editor() as editor:
                editor.alter_db_table(LockEvent, "elsewhere", LockEvent._meta.db_table)
    recorder.flush(10)
    LockEvent.rows.all().delete()
