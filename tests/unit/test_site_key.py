"""The site key: where it comes from, that there is one, and that it does not change under running processes."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import TABLE, site_key
from tests.conftest import PATIENCE
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")


def rows(alias: str = "default") -> list[tuple[Any, ...]]:
    return ask(alias, f"SELECT id, site_key FROM {TABLE}")


Put = Any  # what the fixture own_row gives: Callable[[str | None], None]


@pytest.fixture
def own_row(settings: Any) -> Iterator[Callable[[str | None], None]]:
    """Without the setting: put another key into the row, or none; the row of the migration comes back."""
    settings.DISTLOCK_SITE_KEY = None
    ((_, before),) = rows()

    def put(key: str | None) -> None:
        ask("default", f"DELETE FROM {TABLE}")
        if key is not None:
            ask("default", f"INSERT INTO {TABLE} (id, site_key) VALUES (1, '{key}')")

    put("r" * 43)
    yield put
    put(before)


def key_in_row() -> str:
    """The part of this process's key that comes from the row; the other part is the database that the row is in."""
    return site_key.load().partition("@")[0]


def test_migrate_makes_one_row_of_256_random_bits() -> None:
    ((identity, key),) = rows()
    assert identity == 1
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", key)
    assert {rows(alias)[0][1] for alias in ("default", "postgres", "mariadb")} != {key}, "not drawn anew each time"


def test_migrate_never_replaces_it(own_row: Put) -> None:
    call_command("migrate", "django_distlock", verbosity=0)
    migration = import_module("django_distlock.migrations.0001_initial")
    with connections["default"].schema_editor() as editor:
        migration.make_site_key(apps, editor)  # what it does to the row, once more
    assert rows() == [(1, "r" * 43)]


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_flush_does_not_empty_it(alias: str) -> None:
    """Every TransactionTestCase flushes; a key made anew would end exclusion between running processes."""
    before = rows(alias)
    # Django does not quote the names of tables when it resets sequences on SQLite, and one of the tests has a quote
    call_command("flush", interactive=False, verbosity=0, database=alias, reset_sequences=False)
    assert rows(alias) == before != []


def test_the_row_is_used_without_the_setting_and_pinned(own_row: Put) -> None:
    assert key_in_row() == "r" * 43
    own_row("x" * 43)
    registry.close()
    assert key_in_row() == "r" * 43


def test_a_missing_row_names_both_cures(own_row: Put, name: str) -> None:
    own_row(None)
    with pytest.raises(BackendUnavailable, match=r"no site key.*manage\.py migrate.*set DISTLOCK_SITE_KEY"):
        advisory_lock(name, using="postgres").acquire()
    own_row("r" * 43)  # and it is looked for again, not only once
    advisory_lock(name, using="postgres").acquire().release()


def test_a_missing_table_names_both_cures(own_row: Put, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock in memory needs no key."""
    ask("default", f"ALTER TABLE {TABLE} RENAME TO {TABLE}_away")
    lock, message = advisory_lock(name, using="leasetable"), r"could not be read.*manage\.py migrate.*DISTLOCK_SITE_KEY"
    try:
        with pytest.raises(BackendUnavailable, match=message) as caught:
            lock.acquire()
        assert "no such table" in str(caught.value.__cause__)
        with pytest.raises(BackendUnavailable, match=message):
            asyncio.run(lock.aacquire())
        with advisory_lock(name, using="memory"):
            pass
        monkeypatch.setattr(apps, "is_installed", lambda name: False)
        with pytest.raises(BackendUnavailable, match=r"read\. Add 'django_distlock' to INSTALLED_APPS\. Run `python"):
            lock.acquire()
    finally:
        ask("default", f"ALTER TABLE {TABLE}_away RENAME TO {TABLE}")


def test_the_setting_wins_over_the_row(own_row: Put, settings: Any) -> None:
    """What is stored in the database goes with it: its name is no part of the key of stored records, else a renamed one
    would forget them."""
    site_key.load()
    assert site_key.portable == "r" * 43
    settings.DISTLOCK_SITE_KEY = "s@" * 20
    assert site_key.load() == site_key.portable == "s@" * 20


@pytest.mark.parametrize("busy", ["the thread of the ORM", "the executor of the loop"])
def test_r5_the_first_lock_of_a_task_does_not_wait_for_other_threads(own_row: Put, name: str, busy: str) -> None:
    """Which other tasks may keep busy for as long as they like: nobody holds the lock."""
    begun, acquired = threading.Event(), threading.Event()

    def keep_busy() -> bool:
        begun.set()
        return acquired.wait(PATIENCE)

    async def work() -> bool:
        loop = asyncio.get_running_loop()
        if busy == "the thread of the ORM":
            kept: Any = asyncio.ensure_future(sync_to_async(keep_busy)())
            assert await asyncio.to_thread(begun.wait, PATIENCE)
        else:
            loop.set_default_executor(ThreadPoolExecutor(1))
            kept = loop.run_in_executor(None, keep_busy)
        async with advisory_lock(name, using="leasetable", timeout=PATIENCE / 2):
            acquired.set()
        return bool(await kept)

    assert asyncio.run(work()), "the lock was free and was not got"
