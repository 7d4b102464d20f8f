"""The site key: where it comes from, that there is one, and that it does not change under running processes."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connections
from django.db.models.signals import post_migrate

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import TABLE, site_key
from tests.engines.actors import hold
from tests.faults.server import key_of
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.matrix import Entry

pytestmark = pytest.mark.usefixtures("databases")


def rows(alias: str = "default") -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT id, site_key FROM {TABLE}")
        return cursor.fetchall()


@pytest.fixture
def no_setting(settings: Any) -> None:
    settings.DISTLOCK_SITE_KEY = None


@pytest.fixture
def own_row(no_setting: None) -> Iterator[Callable[[str | None], None]]:
    """Put another key into the row, or none; the row of the migration comes back."""
    before = rows()

    def put(key: str | None) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(f"DELETE FROM {TABLE}")
            if key is not None:
                cursor.execute(f"INSERT INTO {TABLE} (id, site_key) VALUES (1, %s)", [key])

    yield put
    put(before[0][1])


def key_in_row() -> str:
    """The part of this process's key that comes from the row; the other part is the database that the row is in."""
    return site_key.load().partition("@")[0]


def test_migrate_makes_one_row_of_256_random_bits() -> None:
    ((identity, key),) = rows()
    assert identity == 1
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", key)
    assert {rows(alias)[0][1] for alias in ("default", "postgres", "mariadb")} != {key}, "not drawn anew each time"


def test_migrate_never_replaces_it(own_row: Callable[[str | None], None]) -> None:
    own_row("k" * 43)
    call_command("migrate", "django_distlock", verbosity=0)
    remake()
    assert rows() == [(1, "k" * 43)]


def remake() -> None:
    """What the migration does to the row, once more."""
    from importlib import import_module

    from django.apps import apps

    migration = import_module("django_distlock.migrations.0001_initial")
    with connections["default"].schema_editor() as editor:
        migration.make_site_key(apps, editor)


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_flush_does_not_empty_it(alias: str) -> None:
    """Every TransactionTestCase flushes; a key made anew would end exclusion between running processes."""
    before = rows(alias)
    # Django does not quote the names of tables when it resets sequences on SQLite, and one of the tests has a quote
    call_command("flush", interactive=False, verbosity=0, database=alias, reset_sequences=False)
    assert rows(alias) == before != []


def test_the_row_is_used_without_the_setting(own_row: Callable[[str | None], None]) -> None:
    own_row("r" * 43)
    assert key_in_row() == "r" * 43


def test_the_setting_wins_over_the_row(own_row: Callable[[str | None], None], settings: Any) -> None:
    own_row("r" * 43)
    settings.DISTLOCK_SITE_KEY = "s" * 43
    assert site_key.load() == "s" * 43


def test_a_process_pins_what_it_read(own_row: Callable[[str | None], None], name: str) -> None:
    own_row("r" * 43)
    before = key_of("postgres", name)
    own_row("x" * 43)
    registry.close()
    assert key_in_row() == "r" * 43
    assert key_of("postgres", name) == before


def test_a_missing_row_names_both_cures(own_row: Callable[[str | None], None], name: str) -> None:
    own_row(None)
    with pytest.raises(BackendUnavailable, match=r"no site key.*manage\.py migrate.*set DISTLOCK_SITE_KEY"):
        advisory_lock(name, using="postgres").acquire()
    own_row("r" * 43)  # and it is looked for again, not only once
    advisory_lock(name, using="postgres").acquire().release()


@pytest.fixture
def no_table(databases: None, no_setting: None) -> Iterator[None]:
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} RENAME TO {TABLE}_away")
    yield
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE}_away RENAME TO {TABLE}")


@pytest.mark.usefixtures("no_table")
def test_a_missing_table_names_both_cures(name: str) -> None:
    with pytest.raises(
        BackendUnavailable, match=r"could not be read.*manage\.py migrate.*set DISTLOCK_SITE_KEY"
    ) as caught:
        advisory_lock(name, using="postgres").acquire()
    assert "no such table" in str(caught.value.__cause__)


@pytest.mark.usefixtures("no_table")
def test_a_missing_table_names_both_cures_to_a_task(name: str) -> None:
    async def work() -> None:
        async with advisory_lock(name, using="mysql"):
            raise AssertionError("acquired without a site key")

    with pytest.raises(BackendUnavailable, match=r"manage\.py migrate"):
        asyncio.run(work())


@pytest.mark.usefixtures("no_table")
def test_the_memory_backend_needs_no_key(name: str) -> None:
    with advisory_lock(name, using="memory"):
        pass


def test_the_first_use_may_be_a_task(own_row: Callable[[str | None], None], entry: Entry, name: str) -> None:
    """Many tasks at once, each the first: none touches the database from the event loop."""
    own_row("a" * 43)

    async def one(number: int) -> None:
        async with advisory_lock(f"{name}{number}", using=entry.using):
            pass

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(5)))

    asyncio.run(work())
    assert site_key.pinned is None if entry.using == "memory" else key_in_row() == "a" * 43


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r3_two_sites_do_not_exclude_each_other_one_site_does(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    with Child(hold, using, name, env={"DISTLOCK_SITE_KEY": "the key of somebody else's site 0123456789"}) as other:
        assert other.hear() == "held"
        with lock:
            other.say()
            assert other.hear() == "released"
    with Child(hold, using, name) as same:
        assert same.hear() == "held"
        assert lock.try_acquire() is None
        same.say()
        assert same.hear() == "released"


def test_the_key_is_not_shown(own_row: Callable[[str | None], None], name: str) -> None:
    canary = "canary-0123456789-canary-0123456789-canary"
    own_row(canary)
    with advisory_lock(name, using="postgres") as lease:
        shown = [
            site_key,
            registry.entry("postgres"),
            registry.entry("postgres").backend,
            lease,
            key_of("postgres", name),
        ]
        assert canary not in " ".join(f"{thing!r} {thing}" for thing in shown)


def read_key(link: Any) -> None:
    """In a child: what key does this process use?"""
    link.say(site_key.load())


def migrate(link: Any, alias: str, database: str) -> None:
    """In a child whose default database is ``database``, on the server of ``alias``: migrate as often as told."""
    connections["default"].close()
    connections.settings["default"] = {**connections.settings[alias], "NAME": database}
    del connections["default"]
    # what Django's own apps do then is not made for several at once
    post_migrate.receivers.clear()
    post_migrate.sender_receivers_cache.clear()
    while (app := link.hear()) is not None:
        call_command("migrate", app, verbosity=0)
        link.say([key for _, key in rows()] if app == "django_distlock" else [])


@pytest.mark.tier2
@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_processes_that_migrate_at_once_end_with_one_key(alias: str, tmp_path: Path) -> None:
    database = str(tmp_path / "fresh.sqlite3") if alias == "default" else f"distlock_fresh_{os.getpid()}"
    if alias != "default":
        run_sql(alias, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    try:
        with ExitStack() as stack:
            children = [stack.enter_context(Child(migrate, alias, database)) for _ in range(3)]
            children[0].say("contenttypes")  # Django's own table of migrations
            assert children[0].hear() == []
            for child in children:
                child.say("django_distlock")
            keys = [child.hear() for child in children]
            for child in children:
                child.say(None)
        assert len({key for found in keys for key in found}) == 1
        assert [[len(key) for key in found] for found in keys] == [[43]] * 3
    finally:
        if alias != "default":
            run_sql(alias, f"DROP DATABASE {database}")


def run_sql(alias: str, *statements: str) -> None:
    with connections[alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.tier2
def test_r4_nobody_overtakes_tasks_that_wait_for_the_key(name: str) -> None:
    """It is read in a thread; tasks that begin just when it is there come after those that have waited for it."""
    for number in range(3):
        site_key.forget()
        served: list[int] = []

        async def task(which: int, lock: Any, served: list[int] = served) -> None:
            async with lock:
                served.append(which)

        async def main(lock: Any) -> None:
            await asyncio.gather(*[task(which, lock) for which in range(600)])

        asyncio.run(main(advisory_lock(f"{name}{number}", using="leasetable", timeout=60)))
        assert served == list(range(600))


def test_r5_the_first_lock_of_a_task_does_not_wait_for_the_thread_of_the_orm(
    own_row: Callable[[str | None], None], name: str
) -> None:
    """Which other tasks may keep busy for as long as they like: nobody holds the lock."""
    own_row("r" * 43)
    begun, acquired = threading.Event(), threading.Event()

    def keep_busy() -> bool:
        begun.set()
        return acquired.wait(10)

    async def work() -> bool:
        busy = asyncio.ensure_future(sync_to_async(keep_busy)())
        assert await asyncio.to_thread(begun.wait, 10)
        async with advisory_lock(name, using="leasetable", timeout=5):
            acquired.set()
        return await busy

    assert asyncio.run(work()), "the lock was free and was not got"
    assert key_in_row() == "r" * 43


def test_r5_the_first_lock_of_a_task_does_not_wait_for_other_threads(
    own_row: Callable[[str | None], None], name: str
) -> None:
    """The event loop's own may be busy as well."""
    own_row("r" * 43)
    acquired = threading.Event()

    async def work() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, acquired.wait, 10)
        async with advisory_lock(name, using="leasetable", timeout=5):
            acquired.set()
        return await busy

    assert asyncio.run(work()), "the lock was free and was not got"


def test_what_is_stored_in_the_database_goes_with_it(own_row: Callable[[str | None], None], settings: Any) -> None:
    """The name of the database is no part of the key of stored records: else a renamed one would forget them."""
    own_row("r" * 43)
    site_key.load()
    assert site_key.portable == "r" * 43
    settings.DISTLOCK_SITE_KEY = "s@" * 20
    assert site_key.load() == site_key.portable == "s@" * 20
