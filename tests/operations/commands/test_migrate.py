"""``manage.py distlock migrate``: several processes at once on a database that is empty."""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import connections

from tests.conftest import eventually
from tests.faults.conftest import BACKENDS, database_alias
from tests.faults.server import ask
from tests.operations.programs import manage
from tests.operations.world import BUSY, UNAVAILABLE, WRONG, call
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


@contextmanager
def fresh(database: str, folder: Path) -> Iterator[str]:
    """A database without tables, which is the alias "fresh"; its name."""
    name = f"distlock_fresh_{secrets.token_hex(4)}"
    if database == "default":  # SQLite makes its file by itself
        name = str(folder / name)
    else:
        ask(database, f"CREATE DATABASE {name}")
    with database_alias("fresh", database, NAME=name):
        yield name
    if database != "default":
        ask(database, f"DROP DATABASE {name}{' WITH (FORCE)' if database == 'postgres' else ''}")


def errors(child: Child) -> str:
    return "".join(child._errors)


@pytest.mark.tier2
@pytest.mark.parametrize("database", ["postgres", "mariadb", "default"])
def test_several_processes_migrate_once(database: str, tmp_path: Path) -> None:
    """Also through CREATE INDEX CONCURRENTLY, which waits for statements that wait; there is no site key yet."""
    command = ["distlock", "migrate", "dataapp", "-v0"]
    with fresh(database, tmp_path) as name, ExitStack() as stack:
        children = [stack.enter_context(Child(manage, database, name, *command)) for _ in range(3)]
        for child in children:
            child.killed = True  # its exit status is what is looked at
            child.say()
        speaking: list[Child] = []
        eventually(lambda: speaking.extend(c for c in children if not c._lines.empty()) or speaking, "none", 60)
        (first,) = speaking
        assert first.hear() == "migrating"
        for child in (child for child in children if child is not first):
            eventually(lambda c=child: "Waiting" in errors(c) or c.process.poll(), "it does not wait", 60)
            assert "Waiting" in errors(child), errors(child)
        first.say()
        assert {child.process.wait(60) for child in children} == {0}, [errors(child) for child in children]
        applied = "(SELECT count(*) FROM django_migrations WHERE app = 'dataapp')"
        assert list(ask("fresh", f"SELECT n, {applied} FROM counted")) == [(1, 2)]
        assert len(ask("fresh", "SELECT site_key FROM django_distlock_sitekey")) == 1


@pytest.mark.parametrize("using", [[], ["--using", "redis"]])
def test_it_holds_a_lock_whose_holder_others_are_told(using: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that one migrates another database under the same lock. The exit status is that of migrate."""
    found: list[tuple[int, str, str]] = []

    def fails(self: Migrate, **options: Any) -> None:
        waiting = ["migrate", "--database", "postgres", "--timeout", "1", *using]
        waiter = threading.Thread(target=lambda: (found.append(call(*waiting)), connections.close_all()))
        waiter.start()
        waiter.join()
        raise CommandError("no such migration", returncode=3)

    monkeypatch.setattr(Migrate, "handle", fails)
    status, _, err = call("migrate", "--database", "default" if using else "postgres", *using)
    assert (status, err) == (3, "no such migration")
    ((status, _, err),) = found
    assert status == BUSY
    assert err.startswith("Waiting for another process that runs migrate: ")
    assert err.endswith("Another process is still running migrate after 1 s; nothing was done.\n")


def test_an_error_of_a_migration_is_raised_as_migrate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its traceback, and not as if the arguments of the command were wrong. The lock is free again."""

    def fails(self: Migrate, **options: Any) -> None:
        raise ValueError("not a number: 'x'")

    monkeypatch.setattr(Migrate, "handle", fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="not a number"):
            call("migrate", "--timeout", "0", "--database", "postgres")


def test_locks_that_cannot_be_used(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ["migrate", "--plan", "--database", "pgbouncer", "django_distlock"]
    assert call("migrate", "--using", "nowhere")[0] == WRONG
    assert "cannot keep other processes out" in call("migrate", "--using", "memory")[2]
    # behind a pooler there must be a direct way for the lock, which an alias for the database lends
    options = {"database": "pgbouncer", "session_database": "postgres"}
    direct = {"BACKEND": BACKENDS["postgres"], "OPTIONS": options}
    settings.DISTLOCK = {"broken": {"BACKEND": "no.such.Thing"}, "direct": direct}
    assert call(*plan)[0] == 0
    leases = {"BACKEND": BACKENDS["leasetable_postgres"], "OPTIONS": {"database": "postgres"}}
    settings.DISTLOCK = {"leases": leases}
    assert "session_database" in call(*plan)[2]
    # leases in a table are not there yet; the message says what to do instead
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")  # the server's own, without our tables
    status, _, err = call("migrate", "--using", "leases")
    assert (status, "does not exist" in err, "leave out --using" in err) == (UNAVAILABLE, True, True)


def test_a_lock_that_is_lost_meanwhile_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have migrated at the same time: a deployment must not go on as if nothing were wrong."""

    def loses(self: Migrate, **options: Any) -> None:
        assert ask("postgres", "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")

    monkeypatch.setattr(Migrate, "handle", loses)
    status, _, err = call("migrate", "--database", "postgres")
    assert (status, "was lost" in err) == (UNAVAILABLE, True)
