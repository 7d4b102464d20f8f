"""The list of held locks in one process: columns, search, filters, sorting, pages, and what is not there."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.sites import site
from django.core import checks

from django_distlock import advisory_lock
from django_distlock.models import HeldLock
from django_distlock.operations.admin import rows as rows_module
from tests.operations.admin.pages import names, row_of, rows, text
from tests.operations.admin.people import LIST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.test import Client

    from django_distlock.backends.query import LockPage, LockQuery

pytestmark = pytest.mark.usefixtures("two_aliases")


@pytest.fixture
def held(databases: None, two_aliases: None) -> Iterator[None]:
    """Four locks; the first one is the oldest."""
    with ExitStack() as stack:
        for name, shared in (("Report", False), ("account:7", True), ("account:12", False), ("a.*b", False)):
            stack.enter_context(advisory_lock(name, using="memory", shared=shared, timeout=1))
        stack.enter_context(advisory_lock("lease", using="leasetable", timeout=1))
        yield


@pytest.mark.usefixtures("held")
def test_a_row_says_who_holds_what_since_when(boss: Client) -> None:
    found = {row["name"]: row for row in rows(boss.get(LIST).text)}
    report, lease = found["Report"], found["lease"]
    assert (report["backend"], report["mode"], found["account:7"]["mode"]) == ("memory", "exclusive", "shared")
    for row in (report, lease):
        assert str(os.getpid()) in row["holder"]
        assert "MainThread" in row["holder"]
        assert re.match(r"\d s since 2\d\d\d-\d\d-\d\d ", row["held_since"])
        assert re.fullmatch(r"(2\d|30) s", row["ttl_left"])
        assert row["waiters"] == "0"
    assert int(lease["fence"]) > 0


# who may only look has no column for choosing: the columns are counted from the name
QUERIES = [
    ("using=memory", ["Report", "account:7", "account:12", "a.*b"]),
    ("using=memory&o=-5", ["account:7", "a.*b", "account:12", "Report"]),  # shared first, then by name
    ("using=memory&o=0", ["a.*b", "account:12", "account:7", "Report"]),
    ("using=memory&o=-0", ["Report", "account:7", "account:12", "a.*b"]),
    ("using=memory&o=1", ["a.*b", "account:12", "account:7", "Report"]),  # the youngest first
    ("o=2.-4.0", ["a.*b", "account:12", "account:7", "Report", "lease"]),  # nobody waits; then backends, backwards
    ("using=memory&o=99.x", ["Report", "account:7", "account:12", "a.*b"]),
    ("q=ACCOUNT", ["account:7", "account:12"]),
    ("q=t:1", ["account:12"]),
    ("q=a.*b", ["a.*b"]),  # no pattern
    ("q=nothing", []),
    ("mode=shared&using=memory", ["account:7"]),
    ("mode=exclusive&q=account", ["account:12"]),
    ("waiters=no&using=leasetable", ["lease"]),
    ("waiters=yes&using=memory", []),
    ("older=10&using=memory", []),
    ("older=junk&q=report", ["Report"]),
    ("kind=named&q=report", ["Report"]),
    ("kind=table&using=memory", []),
]


@pytest.mark.usefixtures("held")
def test_search_filters_and_sorting(as_: Callable[..., Client]) -> None:
    viewer = as_("viewer")
    for query, expected in QUERIES:
        assert names(viewer, query) == expected, query


@pytest.mark.usefixtures("held")
def test_sorting_is_told_to_screen_readers(boss: Client) -> None:
    page = boss.get(f"{LIST}?o=-1.2").text
    assert page.count('aria-sort="descending"') + page.count('aria-sort="ascending"') == 1
    assert page.count('aria-sort="none"') == 6
    assert "<caption" in page
    assert '<th scope="col"' in page
    assert 'aria-sort="descending"' in boss.get(LIST).text  # the oldest first


def test_pages_and_the_total(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    as_object = rows_module.LockRow.as_object
    monkeypatch.setattr(rows_module.LockRow, "as_object", lambda row: made.append(row) or as_object(row))
    with ExitStack() as stack:
        for number in range(230):
            stack.enter_context(advisory_lock(f"n{number:03}", using="memory"))
        first = boss.get(f"{LIST}?using=memory&o=1")
        assert [row["name"] for row in rows(first.text)] == [f"n{number:03}" for number in range(100)]
        assert "230 held locks" in " ".join(first.text.split())
        assert len(made) == 100  # and not one for each lock
        assert names(boss, "using=memory&o=1&p=3") == [f"n{number:03}" for number in range(200, 230)]
        for beyond in ("9", "4", "9" * 30):
            assert names(boss, f"using=memory&o=1&p={beyond}") == [f"n{number:03}" for number in range(200, 230)]
        assert names(boss, "using=memory&o=1&p=-1&q=n00") == [f"n{number:03}" for number in range(10)]


def test_an_action_on_a_page_that_has_gone_meanwhile(boss: Client) -> None:
    """It was asked for when there were more locks."""
    with ExitStack() as stack:
        for number in range(110):
            stack.enter_context(advisory_lock(f"p{number:03}", using="memory"))
        row = row_of("memory", "p003")
        choice = {"action": "break_selected", "index": "0", "_selected_action": row.pk}
        answer = boss.post(f"{LIST}?using=memory&p=3&q=p0", choice)
        assert answer.status_code == 200
        assert f'value="{row.seen}"' in unescape(answer.text)


def test_one_listing_for_each_page(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    find_locks = rows_module.find_locks

    def counted(query: LockQuery, using: str | None) -> LockPage:
        asked.append((query.start, query.stop, using))
        return find_locks(query, using)

    monkeypatch.setattr(rows_module, "find_locks", counted)
    with ExitStack() as stack:
        for number in range(230):
            stack.enter_context(advisory_lock(f"x{number}", using="memory"))
        boss.get(f"{LIST}?q=x&o=1&p=3")
        boss.get(f"{LIST}?using=memory&q=x&o=1")
    assert asked == [(200, 300, None), (0, 100, "memory")]


def test_the_total_is_told_where_it_is_known(boss: Client) -> None:
    with advisory_lock("x", using="memory"), advisory_lock("y", using="memory"):
        assert "1 result ( 2 total )" in text(boss.get(f"{LIST}?q=x").text)
        # of the other backends nobody has asked
        assert "1 result ( Show all )" in text(boss.get(f"{LIST}?q=x&using=memory").text)


def test_a_page_beyond_the_last_of_a_short_list(boss: Client) -> None:
    with advisory_lock("x", using="memory"):
        for page in ("2", "-1", "0", "9" * 30):
            assert names(boss, f"using=memory&p={page}") == ["x"], page


def test_nothing_held_says_so(boss: Client) -> None:
    assert "No lock is held." in boss.get(LIST).text
    with advisory_lock("x", using="memory"):
        assert "No held lock matches." in boss.get(f"{LIST}?q=y").text


@pytest.mark.usefixtures("held")
def test_fields_and_odd_parameters_do_no_harm(boss: Client) -> None:
    assert boss.get(f"{LIST}?key=x").status_code == 302
    assert boss.get(f"{LIST}?key__regex=(a%2B)%2Bb").status_code in (302, 400)
    assert boss.get(f"{LIST}?nonsense=1").status_code == 302
    assert boss.get(f"{LIST}?e=1").status_code == 200
    assert boss.get(f"{LIST}?q={'%00' * 3}&p=x&o=-").status_code == 200
    assert boss.get(f"{LIST}?o={'9' * 5000}.-{'9' * 5000}").status_code == 200  # no int() takes so many digits


@pytest.mark.usefixtures("held")
def test_a_column_sorts_once(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an address could make a statement with thousands of expressions."""
    asked = []
    find_locks = rows_module.find_locks
    monkeypatch.setattr(rows_module, "find_locks", lambda query, using: asked.append(query) or find_locks(query, using))
    boss.get(f"{LIST}?o={'.'.join(['-4', '3', '4'] * 500)}")
    assert [query.order for query in asked] == [("-holder", "waiters", "name")]


def test_it_is_on_the_index_and_cannot_be_added_to(boss: Client) -> None:
    index = boss.get("/admin/").text
    assert f'href="{LIST}"' in index
    assert f"{LIST}add/" not in index
    assert boss.get(f"{LIST}add/").status_code == 404
    model_admin = site.get_model_admin(HeldLock)
    assert checks.run_checks(tags=["admin"]) == []
    request = boss.get(LIST).wsgi_request
    assert list(model_admin.get_actions(request)) == ["break_selected"]


def test_nothing_on_the_page_needs_a_lax_content_security_policy(boss: Client) -> None:
    page = boss.get(LIST).text
    assert "<style" not in page
    assert " style=" not in page
    assert " onclick=" not in page
    assert all("src=" in tag for tag in page.split("<script")[1:] for tag in [tag.partition(">")[0]])


@pytest.mark.usefixtures("held")
def test_a_refresh_leaves_messages_to_the_page_that_follows(boss: Client) -> None:
    boss.post(LIST, {"action": "break_selected", "index": "0"})  # nothing selected: there is a message now
    refreshed = boss.get(LIST, headers={"X-Distlock-Refresh": "1"})
    assert "Items must be selected" not in refreshed.text
    assert "Items must be selected" in boss.get(LIST).text
