"""The tables of the lease table and the operation that makes them: flush leaves them alone, and there is a way back."""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections, models
from django.db.migrations.state import ModelState, ProjectState

from django_distlock.models import AsciiField, LeaseRow, LeaseTicket, SiteKey
from django_distlock.schema import CreateKeptTable
from tests.engines.leasetable.stores import SERVERS, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALIASES = ("default", "postgres", "mariadb")
pytestmark = pytest.mark.usefixtures("databases")


def tables(alias: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        return set(connections[alias].introspection.table_names(cursor))


def test_the_migrations_are_complete() -> None:
    call_command("makemigrations", "django_distlock", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("alias", ALIASES)
def test_which_tables_there_are(alias: str) -> None:
    ours = {table for table in tables(alias) if table.startswith("django_distlock_")}
    lease = {"django_distlock_lease", "django_distlock_ticket"}
    assert ours >= {"django_distlock_sitekey"}
    assert ours & lease == (set() if alias == "default" else lease), "on SQLite the leases have a file of their own"


@pytest.mark.parametrize("alias", ALIASES)
def test_sqlmigrate_shows_them(alias: str) -> None:
    out = StringIO()
    call_command("sqlmigrate", "django_distlock", "0001", database=alias, stdout=out)
    assert "django_distlock_sitekey" in out.getvalue()
    assert ("distlock_ticket_queue" in out.getvalue()) == (alias != "default")
    backwards = StringIO()
    call_command("sqlmigrate", "django_distlock", "0001", database=alias, backwards=True, stdout=backwards)
    assert "DROP TABLE" in backwards.getvalue()


@pytest.fixture(params=SERVERS)
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stores]:
    made = Stores(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


def test_flush_ends_no_lease(stores: Stores) -> None:
    """What every TransactionTestCase does, and manage.py flush."""
    client, rival = stores.client(), stores.client()
    grant = client.try_acquire(stores.claim())
    waiting = stores.claim()
    assert rival.try_acquire(waiting, 100) is None
    call_command("flush", interactive=False, verbosity=0, database=stores.database, reset_sequences=False)
    assert client.verify(grant)
    assert stores.tickets() == 1
    rival.withdraw(waiting)


def test_the_models_read_what_is_there(stores: Stores) -> None:
    client = stores.client()
    claim, waiting = stores.claim(), stores.claim()
    grant = client.try_acquire(claim)
    assert client.try_acquire(waiting, 100) is None
    row = LeaseRow.rows.using(stores.database).get(digest=claim.key.path)
    assert (row.alias, row.name, row.token, row.fence) == (stores.alias, "name", claim.token, grant.fence)
    assert str(row) == "name"
    ticket = LeaseTicket.rows.using(stores.database).get(token=waiting.token)
    assert ticket.digest == claim.key.path
    assert row.acquired_at < ticket.arrived <= ticket.seen < row.expires_at
    key = SiteKey.rows.using(stores.database).get()
    assert key.site_key not in f"{key} {key!r}"
    client.withdraw(waiting)


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


def test_what_cannot_be_made_is_an_error(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a table that is there is left as it is."""
    monkeypatch.setattr(AsciiField, "db_type", lambda field, connection: "no such ( type")
    with pytest.raises(DatabaseError, match=r"(?i)syntax|unknown data type"):
        Scratch(CreateKeptTable("Scratch")).forwards(alias)


def test_a_router_or_a_vendor_that_does_not_want_it(alias: str, settings: Any) -> None:
    Scratch(CreateKeptTable("Scratch", unless_vendor=[connections[alias].vendor])).forwards(alias)
    assert Scratch.table not in tables(alias)
    settings.DATABASE_ROUTERS = ["tests.engines.leasetable.test_tables.Router"]
    scratch = Scratch(CreateKeptTable("Scratch"))
    scratch.forwards(alias)
    scratch.backwards(alias)
    assert Scratch.table not in tables(alias)


class Router:
    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if model_name == "scratch" else None


def test_the_operation_describes_itself() -> None:
    operation = CreateKeptTable("LeaseRow", unless_vendor=["sqlite"])
    assert operation.describe() == "Create the table of LeaseRow, unless it is there"
    assert operation.migration_name_fragment == "kept_leaserow"
    assert operation.deconstruct() == ("CreateKeptTable", ("LeaseRow",), {"unless_vendor": ["sqlite"]})
