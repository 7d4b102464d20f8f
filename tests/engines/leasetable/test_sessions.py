"""When sessions and files are opened and closed, which file it is, and what is cleaned up in the background."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock import BackendUnavailable, DistlockError, UnsupportedOperation, advisory_lock
from django_distlock.backends.base import IDLE
from django_distlock.backends.cleanup import UNDO_WINDOW
from django_distlock.backends.leasetable import pruning
from django_distlock.backends.leasetable.backend import LeaseTableBackend
from django_distlock.backends.leasetable.records import KEPT, StoreError
from django_distlock.backends.leasetable.sqlite import lease_path
from django_distlock.concurrency.clock import monotonic
from tests.conftest import eventually
from tests.engines.leasetable.stores import SERVERS, STORES, Stores
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stores]:
    give_time(monkeypatch.setattr)
    made = Stores(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(stores: Stores) -> Any:
    return stores.client()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (":memory:", None),
        ("file::memory:?cache=shared", None),
        ("file:memorydb_default?mode=memory&cache=shared", None),
        ("/data/db.sqlite3", "/data/db.sqlite3-distlock"),
        ("file:/data/my%20db.sqlite3?cache=private", "/data/my db.sqlite3-distlock"),
        ("file:///data/db.sqlite3", "/data/db.sqlite3-distlock"),
        ("db.sqlite3", f"{os.getcwd()}/db.sqlite3-distlock"),
    ],
)
def test_the_file_is_beside_the_database(name: str, path: str | None) -> None:
    assert lease_path(name) == path


def test_an_idle_session_is_closed_and_opened_again(stores: Stores, client: Any) -> None:
    assert client.tick(monotonic()) is None, "nothing is open"
    grant = client.try_acquire(stores.claim())
    if stores.store == "memory":
        assert client.tick(monotonic() + 60) is None, "nothing to be closed: it would be lost"
        assert client.verify(grant)
        return
    now = monotonic()
    assert client.tick(now) <= now + 1
    assert client.store.is_open
    client.tick(now + IDLE + 0.1)
    assert not client.store.is_open
    assert client.tick(now + IDLE + 1) is None
    assert client.verify(grant), "leases are rows"
    assert client.store.is_open


def test_close_keeps_the_leases_of_others(stores: Stores, client: Any) -> None:
    other = stores.client()
    grant = other.try_acquire(stores.claim())
    client.close()
    assert other.verify(grant)
    assert client.try_acquire(stores.claim()) is None, "and it may be used again"


def test_a_new_name_of_the_database_is_followed(
    stores: Stores, client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a test runner does to the database of an alias that was used already."""
    if stores.store in SERVERS or stores.store.startswith("portable"):
        grant = client.try_acquire(stores.claim())
        first = client.store.session
        first.name = "another database"
        assert client.verify(grant)
        assert client.store.session is not first
        return
    assert client.try_acquire(stores.claim())
    monkeypatch.setitem(connections.settings["default"], "NAME", tmp_path / "another")
    assert client.try_acquire(stores.claim()) is not None
    assert (tmp_path / "another-distlock").exists()


def test_settings_of_the_user_stay(client: Any, stores: Stores) -> None:
    """The pool and the like are left out of a copy."""
    before = repr({key: value for key, value in connections.settings[stores.database].items() if key != "NAME"})
    assert client.release(client.try_acquire(stores.claim()))
    after = repr({key: value for key, value in connections.settings[stores.database].items() if key != "NAME"})
    assert after == before


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The lease file that is going to be used."""
    monkeypatch.setitem(connections.settings["default"], "NAME", tmp_path / "db")
    return tmp_path / "db-distlock"


def refused(name: str, message: str) -> BaseException:
    with pytest.raises(BackendUnavailable, match=message) as caught:
        advisory_lock(name, using="leasetable").acquire()
    return caught.value.__cause__ or caught.value


def test_a_file_of_a_newer_version(path: Path, name: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    assert isinstance(refused(name, "made by a newer version .*format 2, known: 1"), StoreError)


def test_a_file_that_is_none(path: Path, name: str) -> None:
    path.write_bytes(b"x" * 5000)
    assert isinstance(refused(name, "db-distlock: file is not a database"), sqlite3.DatabaseError)


def test_a_folder_that_is_not_there(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "NAME", path.parent / "missing" / "db")
    assert isinstance(refused(name, "unable to open database file"), sqlite3.OperationalError)


def test_a_file_that_was_deleted_is_made_anew(path: Path, name: str) -> None:
    lock = advisory_lock(name, using="leasetable")
    lock.acquire().release()
    from django_distlock.manager.registry import registry

    registry.close()
    for file in path.parent.glob("db-distlock*"):
        file.unlink()
    lock.acquire().release()
    assert path.exists()


def test_the_file_is_as_private_as_files_are(path: Path, name: str) -> None:
    before = os.umask(0o077)
    try:
        advisory_lock(name, using="leasetable").acquire().release()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_ten_threads_open_it_at_once(path: Path, name: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(10) as pool:
        for future in [pool.submit(advisory_lock(f"{name}{n}", using="leasetable").acquire) for n in range(10)]:
            future.result().release()


def test_an_unknown_database_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="'nowhere', which is not in DATABASES"):
        LeaseTableBackend("x", {"database": "nowhere"})


def test_what_it_does_not_do(using_leasetable: str, name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="share a lock"):
        advisory_lock(name, using=using_leasetable, shared=True).acquire()


@pytest.fixture(params=["leasetable", "leasetable_postgres", "leasetable_mariadb"])
def using_leasetable(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_old_leases_are_pruned_in_the_background(stores: Stores, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BREATH", 0.0)
    assert client.release(client.try_acquire(stores.claim()))
    stores.shift(KEPT + 60)
    client._pruning.tick(monotonic() + pruning.EVERY / 3)
    assert client._pruning._thread is None, "not yet"
    client._pruning.tick(monotonic() + 2 * pruning.EVERY)
    eventually(lambda: stores.kept() == 0, "it is still there")


def test_what_a_failed_withdrawal_leaves_is_undone(
    stores: Stores, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not answer a caller that gives up; the ticket and the lease go when it answers again."""
    other = stores.client()
    assert other.try_acquire(stores.claim("other"))
    waiting = stores.claim("other")
    assert client.try_acquire(waiting, 100) is None
    granted = stores.claim()
    assert client.try_acquire(granted)
    with monkeypatch.context() as broken:
        broken.setattr(type(client.store), "run", failing)
        client.withdraw(waiting)
        client.withdraw(granted)
        eventually(lambda: not client._cleanup._threads, "it never ends")
        assert set(client._cleanup.requests) == {waiting.token, granted.token}, "tried, and to be tried again"
    assert stores.tickets("other") == 1
    assert other.try_acquire(stores.claim()) is None
    clean_up(client)
    assert stores.tickets("other") == 0
    assert other.release(other.try_acquire(stores.claim()))
    assert client._cleanup.requests, "a statement that hangs may still be executed"
    for request in client._cleanup.requests.values():
        request.done_at -= UNDO_WINDOW
    clean_up(client)
    assert not client._cleanup.requests


def clean_up(client: Any) -> None:
    """What the keepalive thread has done a little later."""
    for request in client._cleanup.requests.values():
        request.due = 0.0
    assert client.tick(monotonic()) is not None
    eventually(lambda: not client._cleanup._threads, "it never ends")


def failing(store: Any, *args: Any) -> Any:
    """A server that does not answer, in place of ``run``."""
    raise StoreError("down", uncertain=True)
    yield


def test_errors_are_of_the_library(client: Any, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    grant = client.try_acquire(stores.claim())
    monkeypatch.setattr(type(client.store), "run", failing)
    calls = [
        lambda: client.release(grant),
        lambda: client.verify(grant),
        lambda: client.extend(grant, 1),
        client.inspect,
        client.prune,
        lambda: asyncio.run(client.aextend(grant, 1)),
    ]
    for call in calls:
        with pytest.raises(DistlockError, match="down"):
            call()
