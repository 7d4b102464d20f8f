"""The tables of the lease table and the operation that makes them: flush leaves them alone, and there is a way back."""

from __future__ import annotations

import os
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections, models
from django.db.migrations.state import ProjectState

from django_distlock.models import AsciiField
from django_distlock.schema import CreateKeptModel
from tests.conftest import PATIENCE
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.leasetable.conftest import Stores

pytestmark = pytest.mark.usefixtures("databases")
SCRATCH = f"distlock_scratch_{os.getpid()}"


def tables(alias: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        return set(connections[alias].introspection.table_names(cursor))


@pytest.fixture(params=["default", "postgres", "mariadb"])
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    ask(request.param, f"DROP TABLE IF EXISTS {SCRATCH}")


def test_which_tables_there_are_and_sqlmigrate_shows_them(alias: str) -> None:
    """On SQLite the leases have a file of their own."""
    lease = {"django_distlock_lease", "django_distlock_ticket"}
    assert "django_distlock_sitekey" in tables(alias)
    assert tables(alias) & lease == (set() if alias == "default" else lease)
    out = StringIO()
    call_command("sqlmigrate", "django_distlock", "0001", database=alias, stdout=out)
    assert "django_distlock_sitekey" in out.getvalue()
    assert ("distlock_ticket_queue" in out.getvalue()) == (alias != "default")


@pytest.mark.parametrize("stores", ["postgres", "mariadb"], indirect=True)
def test_flush_ends_no_lease(stores: Stores, a: Any, b: Any) -> None:
    """What every TransactionTestCase does, and manage.py flush."""
    grant = a.try_acquire(stores.claim())
    waiting = stores.waits(b, stores.claim())
    call_command("flush", interactive=False, verbosity=0, database=stores.database, reset_sequences=False)
    assert a.verify(grant)
    assert stores.tickets() == 1
    assert a.release(grant)
    assert b.release(waiting.result(PATIENCE))


def test_the_operation_and_its_way_back(alias: str) -> None:
    fields = [("code", AsciiField(max_length=64, primary_key=True)), ("other", AsciiField(max_length=255))]
    index = models.Index(fields=["other"], name="distlock_scratch_index")
    for managed in (False, True):
        options = {"managed": managed, "db_table": SCRATCH, "indexes": [index]}
        operation, before, after = CreateKeptModel("Scratch", fields, options), ProjectState(), ProjectState()
        operation.state_forwards("django_distlock", after)
        with connections[alias].schema_editor() as editor:
            operation.database_forwards("django_distlock", editor, before, after)
        with connections[alias].cursor() as cursor:
            indexes = set(connections[alias].introspection.get_constraints(cursor, SCRATCH))
        assert "distlock_scratch_index" in indexes
        assert not [name for name in indexes if name.endswith("_like")]
        ask(alias, f"INSERT INTO {SCRATCH} VALUES ('a', 'x'), ('A', 'x')")  # byte by byte
        assert list(ask(alias, f"SELECT count(*) FROM {SCRATCH} WHERE code = 'a'")) == [(1,)]
        with connections[alias].schema_editor() as editor:
            operation.database_backwards("django_distlock", editor, after, before)
        assert SCRATCH not in tables(alias)
