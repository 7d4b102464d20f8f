"""Hashed keys are shown by name: what is written down, when, what it costs, and what happens where it cannot be."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

import django_distlock.manager.registry
from django_distlock import advisory_lock, held_locks
from django_distlock.backends.sessions import names as notes
from django_distlock.keys import LockKey
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.name_log import AGAIN, NameBook
from django_distlock.manager.registry import registry
from django_distlock.operations import pruning
from django_distlock.operations.pruning import prune
from django_distlock.schema import Pruner
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.engines.postgres.test_backend import on
from tests.engines.sessions.test_sessions import FREE, TRY, without_heartbeats
from tests.engines.statements import counted
from tests.faults.conftest import database_alias
from tests.faults.server import SESSION_LOCKS, ask, key_of, noted
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)

COUNT = "SELECT count(*) FROM django_distlock_name"
RENAME = "ALTER TABLE {} RENAME TO {}"
MOVED = "django_distlock_moved"


class Looks:
    """A name book that is told the time, beside the one of the keepalive thread."""

    def __init__(self) -> None:
        self.book = NameBook()
        self.now = 1000.0

    def look(self, using: str, later: float = 1.0) -> None:
        """One more look, and wait until what it found is written."""
        self.now += later
        self.book.look(self.now, lock_table.held())
        backend: Any = registry.entry(using).backend
        eventually(lambda: backend._notes._thread is None, "the names are not written")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The keepalive thread's own looks do not disturb."""
    monkeypatch.setattr("django_distlock.manager.keepalive.namebook.look", lambda now, held: None)
    return Looks()


def _named(using: str, name: str) -> list[LockInfo]:
    (report,) = held_locks(using)
    assert report.error is None
    return [info for info in report.locks if info.name == name]


@each_engine
def test_a_name_that_only_another_process_has_used_is_shown_with_its_holder(using: str, name: str) -> None:
    """Nothing tells this process of the name but the table."""
    spelling = name[-200:] + " Ünïcödé ' \" \\ %s \n\ud800"
    asked = datetime.now(UTC)
    with Child(hold, using, spelling) as child:
        assert child.hear() == "held"
        held = datetime.now(UTC)
        eventually(lambda: _named(using, spelling), "the name is not shown")
        (info,) = _named(using, spelling)
        assert (info.holder or "").split(",")[0].endswith(f":{child.pid}:MainThread")
        assert info.acquired_at is not None
        # the server takes an age from its clock, so a statement that comes late makes it later
        within((info.acquired_at - asked).total_seconds(), (held - asked).total_seconds() + 0.1, least=-0.1)
        assert "collision" not in info.details
        child.say()
        assert child.hear() == "released"


@each_engine
def test_a_name_is_written_once_and_never_in_an_acquire(using: str, name: str, looks: Looks) -> None:
    """The second look that meets a name writes it; an acquire and a release have one statement each all the while."""
    lock = advisory_lock(name, using=using)
    for _ in range(2):
        with lock:
            looks.look(using)
    assert [row[:3] for row in noted(using, name)] == [(name, "", 0)]
    with counted(using) as found:
        for _ in range(10):
            with lock:
                looks.look(using)
    assert without_heartbeats(found) == {TRY[using]: 10, FREE[using]: 10}
    with counted(using) as found, lock:
        looks.look(using, AGAIN)
    assert len(found) > 2, "a name that is in use for longer than a day was not seen again"


@each_engine
def test_a_hold_over_two_looks_says_who_and_since_when(using: str, name: str, looks: Looks) -> None:
    with advisory_lock(name, using=using) as lease:
        for _ in range(3):
            looks.look(using)
        ((found, _, session, holder),) = noted(using, name)
        assert (found, session) == (name, registry.entry(using).backend.server_session(lease._grant))
        assert holder.endswith(f":{os.getpid()}:MainThread")
        (shown,) = registry.entry(using).backend.inspect()
        assert shown.acquired_at is not None
        assert abs(datetime.now(UTC) - shown.acquired_at) < timedelta(seconds=3)


@each_engine
def test_names_that_never_come_again_are_not_written(using: str, name: str, looks: Looks) -> None:
    """Names made from user data, each used for a moment: a look may meet one of them, but not twice."""
    before = ask(using, COUNT)
    for number in range(50):
        with advisory_lock(f"{name} {number}", using=using):
            looks.look(using)
    assert ask(using, COUNT) == before


@each_engine
def test_the_table_is_bounded(using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST", 5)
    monkeypatch.setattr(notes, "EVERY", 1)
    prune(using, days=0)
    for number in range(9):
        with advisory_lock(f"{name} {number}", using=using):
            looks.look(using)
            looks.look(using)
    assert ask(using, COUNT)[0][0] <= 6
    assert noted(using, f"{name} 8")
    assert not noted(using, f"{name} 0")


@each_engine
def test_two_names_with_one_key_are_reported(
    using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """By a hash that is broken on purpose: the part that the engine is sent is the same for both."""

    def broken(secret: str, alias: str, *parts: str) -> LockKey:
        whole = derive(secret, alias, *parts)
        return LockKey(alias, whole.name, b"collides" * 3 + whole.digest[24:])

    derive = django_distlock.manager.registry.derive_key
    monkeypatch.setattr(django_distlock.manager.registry, "derive_key", broken)
    names = [f"collision {os.getpid()}", f"collision-{os.getpid()}"]
    with caplog.at_level(logging.ERROR, "django_distlock.backends"):
        for each in names * 2:
            with advisory_lock(each, using=using):
                looks.look(using)
                looks.look(using)
                (shown,) = registry.entry(using).backend.inspect()
    assert len(caplog.records) == 1, caplog.text
    assert all(repr(each) in caplog.text for each in names)
    assert shown.details["collision"] == names[1]
    assert prune(using, days=0)["names"]


@each_engine
def test_without_the_table_locks_work_and_the_log_says_so_once(
    using: str, name: str, looks: Looks, caplog: Any
) -> None:
    """The code is newer than the database: `migrate` has not run yet."""
    ask(using, RENAME.format("django_distlock_name", MOVED))
    try:
        with caplog.at_level(logging.DEBUG, "django_distlock.backends"), advisory_lock(name, using=using) as lease:
            for _ in range(4):
                looks.look(using)
            assert [info.name for info in _named(using, name)] == [name]
            lease.ensure_held()
    finally:
        ask(using, RENAME.format(MOVED, "django_distlock_name"))
    (record,) = caplog.records
    assert (record.levelname, "migrate" in record.message) == ("WARNING", True)


def test_in_a_database_that_is_only_read(name: str, looks: Looks, settings: Any, caplog: Any) -> None:
    """PostgreSQL's advisory locks work on a standby too."""
    options = {"options": "-c default_transaction_read_only=on"}
    with database_alias("reading", "postgres", OPTIONS=options), ExitStack() as stack:
        on(settings, "reading")
        stack.callback(registry.close)
        with caplog.at_level(logging.DEBUG, "django_distlock.backends"), advisory_lock(name, using="postgres"):
            for _ in range(4):
                looks.look("postgres")
            assert [info.name for info in _named("postgres", name)] == [name]
    assert ["read-only" in record.message for record in caplog.records] == [True]


def test_behind_a_pooler_names_are_not_kept(name: str, looks: Looks, settings: Any, caplog: Any) -> None:
    """A transaction needs no session of ours there, and there can be none."""
    on(settings, "pgbouncer")
    with (
        caplog.at_level(logging.DEBUG, "django_distlock.backends"),
        transaction.atomic("pgbouncer"),
        advisory_lock(name, using="postgres"),
    ):
        for _ in range(4):
            looks.look("postgres")
    assert [(record.levelname, "pooler" in record.message) for record in caplog.records] == [("INFO", True)]
    assert not noted("postgres", name)


@pytest.fixture
def locked_table(using: str) -> Iterator[None]:
    """Somebody has the table of names for himself, and does not let go."""
    statement = "LOCK TABLE django_distlock_name" if using == "postgres" else "LOCK TABLES django_distlock_name WRITE"
    with transaction.atomic("postgres" if using == "postgres" else "mariadb"):
        ask(using, statement)
        try:
            yield
        finally:
            if using == "mysql":
                ask(using, "UNLOCK TABLES")


@each_engine
def test_a_write_that_hangs_costs_no_lock(
    using: str, name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """On the lock's own session it would: that is declared dead when a statement hangs."""
    monkeypatch.setattr(notes, "STATEMENT_LIMIT", 0.3)
    with advisory_lock(name, using=using) as lease:
        looks.look(using)
        request.getfixturevalue("locked_table")
        looks.look(using)
        lease.ensure_held()
        backend: Any = registry.entry(using).backend
        assert backend._notes._rests_until > 0
        with advisory_lock(name + "2", using=using):
            pass


def test_prune_counts_by_kind_and_asks_who_else_keeps_something(
    name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with advisory_lock(name, using="postgres"):
        looks.look("postgres")
        looks.look("postgres")
    assert prune("postgres", days=1) == {"names": 0}
    monkeypatch.setattr(
        pruning, "_pruners", lambda: {"some": Pruner(lambda: ["default"], lambda database, days: int(days))}
    )
    found = prune(days=0)
    assert found["names"] >= 1
    assert (found["some"], found["leases"] >= 0) == (0, True)
    assert not noted("postgres", name)
    for wrong in (-1, float("nan"), "30", None):
        with pytest.raises((TypeError, ValueError), match="days"):
            prune(days=wrong)  # type: ignore[arg-type]


def test_a_batch_is_not_the_end(name: str, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_distlock.backends.postgres.introspection.BATCH", 2)
    monkeypatch.setattr(notes, "BATCH", 2)
    prune("postgres", days=0)
    with ExitStack() as stack:
        for number in range(5):
            stack.enter_context(advisory_lock(f"{name} {number}", using="postgres"))
        looks.look("postgres")
        looks.look("postgres")
    assert prune("postgres", days=0) == {"names": 5}


def test_r22_a_fork_begins_with_an_empty_book() -> None:
    """The thread that writes is the parent's."""
    backend: Any = registry.entry("postgres").backend
    backend._notes._thread = threading.current_thread()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if backend._notes._thread is None else 1)
    backend._notes._thread = None
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_key_of_is_what_the_engine_lists() -> None:
    for using, form in (("postgres", "number"), ("mysql", "text")):
        key = key_of(using, "n")
        assert registry.entry(using).backend.listed_as(key) == str(getattr(key, form))
