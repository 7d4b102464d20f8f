"""``manage.py distlock migrate``: five processes at once on a database that is empty."""

from __future__ import annotations

import io
import secrets
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command
from django.core.management.commands.migrate import Command as Migrate
from django.db import connections

from django_distlock import UnsupportedOperation
from django_distlock.operations.migration_lock import migration_lock
from tests.conftest import eventually
from tests.faults.server import ask
from tests.operations.programs import manage
from tests.support.processes import Child
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

PATIENCE = 30.0
ENGINES = ["postgres", "mariadb", "sqlite"]
# How to look into a database from another one of the same server.
ROWS = "SELECT n, (SELECT count(*) FROM django_migrations WHERE app = 'dataapp') FROM counted"


class Fresh(NamedTuple):
    """A database without tables: the alias of its server, its name, and a query on it."""

    alias: str
    name: str
    ask: Callable[[str], list[Any]]


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fresh]:
    name = f"distlock_fresh_{secrets.token_hex(4)}"
    if request.param == "sqlite":
        path = str(tmp_path / "fresh.sqlite3")

        def rows(sql: str) -> list[Any]:
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute(sql).fetchall()

        yield Fresh("default", path, rows)
        return
    ask(request.param, f"CREATE DATABASE {name}")
    yield Fresh(request.param, name, lambda sql: _elsewhere(request.param, name, sql))
    ask(request.param, f"DROP DATABASE {name}{' WITH (FORCE)' if request.param == 'postgres' else ''}")


def _elsewhere(alias: str, name: str, sql: str) -> list[Any]:
    connection = connections.create_connection(alias)
    connection.settings_dict = {**connection.settings_dict, "NAME": name}
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()


@contextmanager
def started(count: int, fresh: Fresh, *arguments: str) -> Iterator[list[Child]]:
    """So many processes, let go at one barrier."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(manage, fresh.alias, fresh.name, *arguments)) for _ in range(count)]
        for child in children:
            child.killed = True  # its exit status is what these tests look at
            child.say()
        yield children


def errors(child: Child) -> str:
    return "".join(child._errors)


def statuses(children: list[Child]) -> list[int]:
    return [child.process.wait(PATIENCE) for child in children]


@pytest.mark.parametrize("fresh", ENGINES, indirect=True)
def test_five_processes_migrate_once(fresh: Fresh) -> None:
    """All others wait while the first one is in the middle of it, also through CREATE INDEX CONCURRENTLY, which would
    wait for statements that wait. The table of the site key is not there when they begin."""
    with started(3 if fresh.alias == "default" else 5, fresh, "distlock", "migrate", "dataapp", "-v0") as children:
        speaking: list[Child] = []
        eventually(lambda: speaking.extend(c for c in children if not c._lines.empty()) or speaking, "none", PATIENCE)
        (first,) = speaking
        assert first.hear() == "migrating"
        others = [child for child in children if child is not first]
        for child in others:
            eventually(lambda c=child: "Waiting" in errors(c) or c.process.poll(), "it does not wait", PATIENCE)
            assert "Waiting" in errors(child), errors(child)
        first.say()
        assert set(statuses(children)) == {0}, [errors(child) for child in children]
    assert fresh.ask(ROWS) == [(1, 3)]
    assert len(fresh.ask("SELECT site_key FROM django_distlock_sitekey")) == 1


@pytest.mark.parametrize("fresh", ["postgres"], indirect=True)
def test_without_the_lock_they_get_into_each_others_way(fresh: Fresh) -> None:
    """What the command is for: both have made their plan before the first one has applied it."""
    with started(2, fresh, "migrate", "dataapp", "-v0") as children:
        for child in children:
            assert child.hear(PATIENCE) == "planned"
        children[0].say()
        assert children[0].hear(PATIENCE) == "migrating"
        children[0].say()
        assert children[0].process.wait(PATIENCE) == 0, errors(children[0])
        children[1].say()
        assert children[1].process.wait(PATIENCE) != 0
    assert "already exists" in errors(children[1])


def call(*arguments: str, **options: Any) -> tuple[int, str]:
    """In this process; the exit status, and what was said."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("distlock", "migrate", *arguments, stdout=out, stderr=err, **options)
    except SystemExit as error:
        return int(error.code or 0), out.getvalue() + err.getvalue()
    return 0, out.getvalue() + err.getvalue()


@pytest.mark.parametrize("database", ["default", "postgres", "mariadb"])
def test_it_takes_the_options_of_migrate(database: str) -> None:
    status, said = call("--plan", "--database", database, "registration", "-v", "0")
    assert (status, said) == (0, "Planned operations:\n  No planned migration operations.\n")


def test_the_exit_status_is_that_of_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Migrate, **options: Any) -> None:
        again = migration_lock("default").try_acquire()
        assert again is not None  # this thread holds it already
        again.release()
        raise CommandError("no such migration", returncode=3)

    monkeypatch.setattr(Migrate, "handle", fails)
    with pytest.raises(CommandError, match="no such migration") as error:
        call()
    assert error.value.returncode == 3


@pytest.mark.parametrize(
    ("using", "database"),
    [(None, "postgres"), *product(["redis", "zookeeper", "leasetable_postgres"], ["postgres", "default"])],
)
def test_who_does_not_want_to_wait_is_told_for_whom_he_would(
    using: str | None, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that one migrates another database under the same lock."""
    give_time(monkeypatch.setattr)
    lease = migration_lock(database, using).try_acquire()
    assert lease is not None
    try:
        import threading

        said: list[tuple[int, str]] = []
        options = ["--using", using] if using else []
        waiter = threading.Thread(
            target=lambda: said.append(call("--database", "postgres", "--timeout", "0.05", *options))
        )
        waiter.start()
        waiter.join(PATIENCE)
        ((status, text),) = said
        assert status == 75
        assert text.startswith("Waiting for another process that runs migrate: ")
        assert text.endswith("Another process is still running migrate after 0.05 s; nothing was done.\n")
    finally:
        lease.release()


def test_a_lock_that_is_lost_meanwhile_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def loses(self: Migrate, **options: Any) -> None:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
        assert ask("postgres", sql)

    monkeypatch.setattr(Migrate, "handle", loses)
    status, said = call("--database", "postgres")
    assert status == 69
    assert "was lost" in said


@pytest.mark.parametrize(
    ("using", "message"), [("nowhere", "no lock backend 'nowhere'"), ("memory", "cannot keep other processes out")]
)
def test_locks_that_cannot_be_used(using: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call("--using", using)


def test_leases_in_a_table_are_not_there_yet(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the message says what to do instead."""
    settings.DISTLOCK = {
        "leases": {
            "BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend",
            "OPTIONS": {"database": "postgres"},
        }
    }
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")  # the server's own, without our tables
    with pytest.raises(CommandError, match=r"does not exist(?s:.*)leave out --using") as error:
        call("--using", "leases")
    assert error.value.returncode == 69


def test_an_alias_for_the_database_lends_its_options(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler there must be a direct way for the lock."""
    backend = "django_distlock.backends.postgres.AdvisoryBackend"
    settings.DISTLOCK = {
        "broken": {"BACKEND": "no.such.Thing"},
        "leases": {"BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend"},
        "direct": {"BACKEND": backend, "OPTIONS": {"database": "pgbouncer", "session_database": "postgres"}},
    }
    lease = migration_lock("pgbouncer").acquire()
    assert lease.using.endswith("direct")
    lease.release()
    settings.DISTLOCK = {}
    with pytest.raises(UnsupportedOperation, match="session_database"):
        migration_lock("pgbouncer").acquire()
