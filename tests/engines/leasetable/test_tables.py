"""The tables of the lease table and the operation that makes them: flush leaves them alone, and there is a way back."""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections, models
from django.db.migrations.state import ModelState, ProjectState

from django_distlock.models import AsciiField
from django_distlock.schema import CreateKeptTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.leasetable.stores import Stores

ALIASES = ("default", "postgres", "mariadb")
pytestmark = pytest.mark.usefixtures("databases")


def tables(alias: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        return set(connections[alias].introspection.table_names(cursor))


@pytest.mark.parametrize("alias", ALIASES)
def test_which_tables_there_are_and_sqlmigrate_shows_them(alias: str) -> None:
    """On SQLite the leases have a file of their own."""
    ours = {table for table in tables(alias) if table.startswith("django_distlock_")}
    lease = {"django_distlock_lease", "django_distlock_ticket"}
    assert ours >= {"django_distlock_sitekey"}
    assert ours & lease == (set() if alias == "default" else lease)
    out = StringIO()
    call_command("sqlmigrate", "django_distlock", "0001", database=alias, stdout=out)
    assert "django_distlock_sitekey" in out.getvalue()
    assert ("distlock_ticket_queue" in out.getvalue()) == (alias != "default")


on_servers = pytest.mark.parametrize("stores", ["postgres", "mariadb"], indirect=True)


@on_servers
def test_flush_ends_no_lease(stores: Stores, a: Any, b: Any) -> None:
    """What every TransactionTestCase does, and manage.py flush."""
    grant = a.try_acquire(stores.claim())
    waiting = stores.claim()
    assert b.try_acquire(waiting, 100) is None
    call_command("flush", interactive=False, verbosity=0, database=stores.database, reset_sequences=False)
    assert a.verify(grant)
    assert stores.tickets() == 1
    b.withdraw(waiting)


class Scratch:
    """A model that no app has, in the state that a migration sees."""

    table = f"distlock_scratch_{os.getpid()}"

    def __init__(self, operation: CreateKeptTable) -> None:
        self.operation = operation
        self.state = ProjectState()
        fields = [
            ("code", AsciiField(max_length=64, primary_key=True)),
            ("other", AsciiField(max_length=255)),
        ]
        options = {
            "managed": False,
            "db_table": self.table,
            "indexes": [models.Index(fields=["other"], name="distlock_scratch_index")],
        }
        self.state.add_model(ModelState("django_distlock", "Scratch", fields, options))

    def forwards(self, alias: str) -> None:
        with connections[alias].schema_editor() as editor:
            self.operation.database_forwards("django_distlock", editor, ProjectState(), self.state)

    def backwards(self, alias: str) -> None:
        with connections[alias].schema_editor() as editor:
            self.operation.database_backwards("django_distlock", editor, ProjectState(), self.state)

    def indexes(self, alias: str) -> set[str]:
        with connections[alias].cursor() as cursor:
            return set(connections[alias].introspection.get_constraints(cursor, self.table))


@pytest.fixture(params=ALIASES)
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    with connections[request.param].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {Scratch.table}")


def test_the_operation_and_its_way_back(alias: str) -> None:
    scratch = Scratch(CreateKeptTable("Scratch"))
    for _ in range(2):  # a second migrate finds what it wanted to make
        scratch.forwards(alias)
        assert scratch.table in tables(alias)
        assert "distlock_scratch_index" in scratch.indexes(alias)
    assert not [name for name in scratch.indexes(alias) if name.endswith("_like")]
    with connections[alias].cursor() as cursor:
        cursor.execute(f"INSERT INTO {scratch.table} VALUES ('a', 'x'), ('A', 'x')")  # byte by byte
        cursor.execute(f"SELECT count(*) FROM {scratch.table} WHERE code = 'a'")
        assert cursor.fetchone() == (1,)
    for _ in range(2):
        scratch.backwards(alias)
        assert scratch.table not in tables(alias)
