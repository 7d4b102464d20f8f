"""EnforceFence as an operation: written to a file, squashed, refused, routed, on odd tables."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, connections, migrations, models, transaction
from django.db.migrations.optimizer import MigrationOptimizer
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import OperationWriter
from django.test import override_settings

import django_distlock.data
from django_distlock.data import EnforceFence
from django_distlock.data.fencing.operations import FenceTrigger
from tests.data.app.models import FencedLedger
from tests.data.conftest import every_database
from tests.data.fences import EARLY, LATE


def test_it_is_written_to_a_file() -> None:
    text, imports = OperationWriter(EnforceFence("Register", field="fence"), indentation=0).serialize()
    assert imports == {"import django_distlock.data.fencing.operations"}
    assert "".join(text.split()) == (
        "django_distlock.data.fencing.operations.EnforceFence(model_name='Register',field='fence',),"
    )
    operation = EnforceFence("Register")
    assert operation.describe() == "Refuse to lower fence of Register"
    assert operation.formatted_description() == "+ Refuse to lower fence of Register"
    assert operation.migration_name_fragment == "enforce_register_fence"
    assert operation.reversible
    assert operation.reduces_to_sql
    assert not operation.elidable


def test_other_operations_pass_it_when_squashed() -> None:
    field = models.IntegerField(default=0)
    operations = [
        migrations.CreateModel("A", [("id", models.BigAutoField(primary_key=True)), ("fence", field)]),
        migrations.CreateModel("B", [("id", models.BigAutoField(primary_key=True))]),
        EnforceFence("A"),
        migrations.AddField("B", "x", field),
        migrations.AlterField("A", "fence", models.BigIntegerField(default=0)),
    ]
    done = MigrationOptimizer().optimize(operations, "dataapp")
    assert [type(operation).__name__ for operation in done] == [
        "CreateModel",
        "EnforceFence",
        "CreateModel",
        "AlterField",
    ]
    assert [name for name, _ in done[2].fields] == ["id", "x"]


BAD: list[tuple[Any, type[Exception], str]] = [
    ((1,), TypeError, "model_name must be a str, not int."),
    (("Register", None), TypeError, "field must be a str, not NoneType."),
    (("app.Register",), ValueError, "model_name must be the name of a model or field without its app"),
    (("",), ValueError, "model_name must be the name of a model or field without its app, not ''."),
    (("Register", "fence; DROP TABLE x"), ValueError, "field must be the name of"),
]


def test_bad_input(databases: None) -> None:
    for arguments, error, message in BAD:
        with pytest.raises(error, match=message):
            EnforceFence(*arguments)
    for (model, field), error, message in (
        (("Register", "fense"), FieldDoesNotExist, "has no field named 'fense'"),
        (("Register", "owner"), ValueError, "owner of Register is no integer field"),
        (("CashRegister", "fence"), ValueError, "fence is a field of Register; name that model"),
    ):
        with pytest.raises(error, match=message):
            run("postgres", EnforceFence(model, field))


def run(alias: str, operation: EnforceFence, backwards: bool = False) -> None:
    state = ProjectState.from_apps(apps)
    go = operation.database_backwards if backwards else operation.database_forwards
    with connections[alias].schema_editor() as editor:
        go("dataapp", editor, state, state)


@every_database
@pytest.mark.usefixtures("fenced")
def test_a_name_that_must_be_quoted_and_the_orm(alias: str) -> None:
    """ORM writes that name the fence meet the trigger too; fenced() is in front of it."""
    operation = EnforceFence("FencedLedger")
    run(alias, operation)
    run(alias, operation)  # a second one takes the place of the first
    try:
        row = FencedLedger.objects.using(alias).create(fence=LATE)
        with transaction.atomic(alias):
            refused = pytest.raises(
                IntegrityError, match="stale fencing token: the fence of dataapp O'Hara Fenced must"
            )
            with refused, transaction.atomic(alias):
                FencedLedger.objects.using(alias).filter(pk=row.pk).update(fence=EARLY)
            row.fence = EARLY
            with pytest.raises(IntegrityError, match="must not fall"), transaction.atomic(alias):
                models.Model.save_base(row, using=alias)
        with pytest.raises(django_distlock.LockLost):
            row.save(fence=EARLY)
    finally:
        run(alias, operation, backwards=True)
    FencedLedger.objects.using(alias).filter(pk=row.pk).update(fence=EARLY)


@pytest.mark.parametrize("alias", ["postgres"])  # elsewhere a trigger has no function beside it
@pytest.mark.usefixtures("databases")
def test_a_new_table_by_the_old_name_of_another(alias: str) -> None:
    """A renamed table keeps its trigger and function, and the new one asks for a function of the same name."""
    connection = connections[alias]
    fence = FenceTrigger("dataapp_passing", "fence")

    def run_all(*statements: str) -> None:
        with connection.schema_editor() as editor:
            for statement in statements or fence.create(editor):
                editor.execute(statement, params=None)

    make = "CREATE TABLE dataapp_passing (id int, fence bigint)"
    try:
        run_all(make)
        run_all()
        run_all("ALTER TABLE dataapp_passing RENAME TO dataapp_passed", make)
        run_all()
        with connection.schema_editor() as editor:
            for statement in fence.drop(editor):
                editor.execute(statement, params=None)
        assert not fence.works(connection)
        assert FenceTrigger("dataapp_passed", "fence").works(connection)
    finally:
        run_all("DROP TABLE IF EXISTS dataapp_passed", "DROP TABLE dataapp_passing")
        run_all(f"DROP FUNCTION IF EXISTS {fence.name}()")


class Elsewhere:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


@pytest.mark.usefixtures("fenced")
def test_the_router_is_asked(alias: str) -> None:
    with override_settings(DATABASE_ROUTERS=[Elsewhere()]):
        run(alias, EnforceFence("FencedLedger"))
    row = FencedLedger.objects.using(alias).create(fence=LATE)
    assert FencedLedger.objects.using(alias).filter(pk=row.pk).update(fence=EARLY) == 1
