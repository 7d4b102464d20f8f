"""What the pages about one lock say of it: who waits, what its session holds, names with one key, and its history."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from django_distlock import advisory_lock
from django_distlock.models import LockEvent, LockName
from django_distlock.operations.recorder import recorder
from django_distlock.records import MOST_WAITING
from tests.conftest import eventually
from tests.operations.admin.pages import address, row_of, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client


def pages(client: Client, using: str, name: str) -> tuple[str, str]:
    """The lock's own page and the question before it is broken, as text."""
    row = row_of(using, name)
    detail, question = (client.get(address(row, what)) for what in ("change", "break"))
    assert (detail.status_code, question.status_code) == (200, 200)
    return text(detail.text), text(question.text)


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_a_session_is_ended_with_all_that_it_holds(boss: Client, using: str, name: str) -> None:
    with (
        override_settings(DISTLOCK={using: settings.DISTLOCK[using]}),
        advisory_lock(name, using=using, timeout=5),
        advisory_lock(f"{name}-beside", using=using, timeout=5),
    ):
        detail, question = pages(boss, using, name)
        also_holds = row_of(using, name).info.details["also_holds"]
        backend = "AdvisoryBackend" if using == "postgres" else "NamedLockBackend"
        assert f"Backend {using} ({backend})" in detail
        assert f"Backend {using} ({backend}), exclusive" in question
        assert f"Also held by this session {also_holds}" in detail
        assert f"Besides this one it holds: {also_holds}" in question
        assert "a transaction that is open in it is rolled back" in question
        if using == "postgres":
            assert "Last statement 20" in detail  # a date, and not seconds since 1970


def test_two_names_with_one_key_are_told_before_one_is_broken(boss: Client, name: str) -> None:
    note = dict.fromkeys(("seen_at", "session", "since"), 0) | {"alias": "postgres", "holder": "-"}
    with (
        override_settings(DISTLOCK={"postgres": settings.DISTLOCK["postgres"]}),
        advisory_lock(name, using="postgres", timeout=5),
    ):
        rows = LockName.rows.using("postgres")
        rows.create(key=row_of("postgres", name).info.key, name=name, other="<i>twin", **note)
        try:
            for page in pages(boss, "postgres", name):
                assert "Another name has the same key: <i>twin ." in page
        finally:
            rows.filter(name=name).delete()


@pytest.mark.usefixtures("two_aliases")
def test_a_long_queue_is_cut_and_counted(boss: Client, name: str) -> None:
    """Each who waits is an item of a list: what they say of themselves has commas in it."""
    lock = advisory_lock(name, using="memory", timeout=20)

    def take_a_turn() -> None:
        with lock:
            pass

    count = MOST_WAITING + 3
    waiters = [threading.Thread(target=take_a_turn, name=f"one, two {number}") for number in range(count)]
    with ExitStack() as stack:
        stack.callback(lambda: [waiter.join() for waiter in waiters])
        lease = stack.enter_context(lock)
        for waiter in waiters:
            waiter.start()
        eventually(lambda: row_of("memory", name).info.waiters == count, "they do not wait")
        row = row_of("memory", name)
        for what in ("change", "break"):
            page = boss.get(address(row, what)).text
            assert page.count("<li><bdi>") == MOST_WAITING
            assert "<li><bdi>" in page.partition(":one, two 0<")[0]
            assert "and 3 more" in page
        assert lease.held


@pytest.fixture
def recorded(databases: None, two_aliases: None) -> Iterator[None]:
    with override_settings(DISTLOCK_HISTORY_DAYS=1):
        yield
        recorder.flush(10)
    LockEvent.rows.all().delete()


def test_the_history_is_shown_with_a_plot(boss: Client, recorded: None, name: str) -> None:
    with advisory_lock(name, using="memory"):
        row = row_of("memory", name)
        boss.get(address(row))
        assert recorder.flush(10)
        page = boss.get(address(row)).text
        assert "<svg" in page
        assert "Recent history" in page
        assert "<td>acquired</td>" in page


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("atomic", [True, False])
def test_a_history_that_cannot_be_read_is_a_red_line(boss: Client, atomic: bool, name: str) -> None:
    """The table is missing, or the database that a router chose for it is down."""
    connection = connections["default"]
    assert recorder.flush(10)
    with connection.schema_editor() as editor:
        editor.alter_db_table(LockEvent, LockEvent._meta.db_table, "elsewhere")
    try:
        with advisory_lock(name, using="memory"):
            row = row_of("memory", name)
            connection.settings_dict["ATOMIC_REQUESTS"] = atomic
            page = boss.get(address(row))
            assert page.status_code == 200
            assert "The history cannot be read (OperationalError); the log says more." in page.text
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
        with connection.schema_editor() as editor:
            editor.alter_db_table(LockEvent, "elsewhere", LockEvent._meta.db_table)
