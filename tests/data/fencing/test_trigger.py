"""EnforceFence: the database refuses to lower a fence, whoever writes and whatever became of the table since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.core.management import call_command
from django.db import IntegrityError, OperationalError, connections, migrations, models, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.optimizer import MigrationOptimizer
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import OperationWriter
from django.test import override_settings

from django_distlock import LockLost
from django_distlock.checks.servers import check_fences
from django_distlock.data import EnforceFence, RelaxFence
from django_distlock.data.fencing.triggers import restore
from tests.data.app.models import FencedLedger
from tests.data.world import DATABASES, EARLY, LATE, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VAULT, SAFE = "dataapp_vault", "dataapp O'Hara Safe"
KEY = ("id", models.BigAutoField(primary_key=True))
NUMBER = models.IntegerField(default=0)
FENCED = EnforceFence("Vault")
MADE = [
    migrations.CreateModel("Vault", [KEY, ("fence", models.BigIntegerField(default=0)), ("balance", NUMBER)]),
    FENCED,
]


def text(length: int) -> Any:
    return models.CharField(max_length=length, default="x")


# The history of one fenced table, and of one that is deleted before another model, whose number called fence may fall,
# gets its name.
CHANGED: list[list[Any]] = [
    MADE,
    [
        migrations.AlterField("vault", "balance", models.BigIntegerField(default=0)),
        migrations.AddField("vault", "note", text(10)),
    ],
    [migrations.RenameModel("Vault", "Safe"), migrations.AlterModelTable("Safe", SAFE)],
    [migrations.AlterField("safe", "note", text(20))],
    [migrations.RenameField("safe", "fence", "token")],
    [RelaxFence("Safe", "token"), migrations.RemoveField("safe", "token")],
]
MADE_AGAIN: list[list[Any]] = [
    MADE,
    [migrations.DeleteModel("Vault")],
    [migrations.CreateModel("Vault", [KEY, ("fence", NUMBER), ("balance", NUMBER)])],
]
RENAMED = [MADE, [migrations.RenameModel("Vault", "Safe")], MADE, [RelaxFence("Vault")]]
HISTORIES = {"changed": CHANGED, "made_again": MADE_AGAIN, "renamed_and_made": RENAMED}
FILE = """
from django.db import migrations
from {module} import HISTORIES

class Migration(migrations.Migration):
    dependencies = {before}
    operations = HISTORIES["{history}"][{number}]
"""


@pytest.fixture(params=DATABASES)
def using(request: pytest.FixtureRequest) -> str:
    """The SQL of triggers is each engine's own."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def migrate(
    using: str, fresh: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """migrate(2): the history up to its second migration, without what the command does besides."""
    history = getattr(request, "param", "changed")
    package = tmp_path / f"fence_{history}"
    package.mkdir()
    (package / "__init__.py").touch()
    names = [f"{number + 1:04}_step" for number in range(len(HISTORIES[history]))]
    for number, name in enumerate(names):
        before = [("dataapp", names[number - 1])] if number else []
        values = {"module": __name__, "before": before, "history": history, "number": number}
        (package / f"{name}.py").write_text(FILE.format(**values))
    monkeypatch.syspath_prepend(tmp_path)

    def go(target: int, restoring: bool = True) -> None:
        executor = MigrationExecutor(connections[using])
        executor.migrate([("dataapp", names[target - 1] if target else None)])
        if restoring:
            restore(using, plan=[True])

    with override_settings(MIGRATION_MODULES={"dataapp": package.name}):
        yield go
        go(0, restoring=False)


def execute(using: str, sql: str, table: str = VAULT, fence: str = "fence", parameters: Any = ()) -> Any:
    """Raw SQL; {t} and {f} are the table and the fence."""
    quote = connections[using].ops.quote_name
    return run(using, sql.format(t=quote(table), f=quote(fence)), *parameters)


def put(using: str, table: str = VAULT, more: str = "", value: str = "", fence: str = "fence") -> None:
    execute(using, f"INSERT INTO {{t}} ({{f}}, balance{more}) VALUES ({LATE}, 1{value})", table, fence)


def rows(using: str) -> list[tuple[int, int]]:
    return list(execute(using, "SELECT balance, {f} FROM {t} ORDER BY id"))


def lower(using: str, table: str = VAULT, fence: str = "fence") -> None:
    execute(using, f"UPDATE {{t}} SET balance = 9, {{f}} = {EARLY}", table, fence)


def enforced(using: str, table: str = VAULT, fence: str = "fence") -> bool:
    """Does the database refuse, and takes the rest? Nothing is changed either way."""
    with transaction.atomic(using):
        execute(using, "UPDATE {t} SET balance = 2", table)
        execute(using, "UPDATE {t} SET {f} = {f} + 1", table, fence)
        try:
            with transaction.atomic(using):
                lower(using, table, fence)
        except IntegrityError:
            return True
        finally:
            transaction.set_rollback(True, using)
    return False


TRIGGERS = {
    "postgres": "SELECT tgname FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid WHERE relname IN (%s, %s)",
    "mariadb": (
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE IN (%s, %s)"
    ),
    "default": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN (%s, %s)",
}


def triggers(using: str) -> list[Any]:
    return list(run(using, TRIGGERS[using], VAULT, SAFE))


def test_raw_sql(using: str, migrate: Any) -> None:
    migrate(1)
    put(using)
    with pytest.raises(IntegrityError, match="stale fencing token: the fence of dataapp_vault must not fall"):
        lower(using)
    execute(using, f"UPDATE {{t}} SET balance = 2, {{f}} = {LATE}")
    assert rows(using) == [(2, LATE)]
    execute(using, "UPDATE {t} SET balance = 4")
    assert rows(using) == [(4, LATE)], "a writer that says nothing of the fence is not refused"
    execute(using, "INSERT INTO {t} ({f}, balance) VALUES (0, 1)")
    with pytest.raises(IntegrityError):
        lower(using)  # one late row refuses the statement
    ((pk,),) = execute(using, f"SELECT id FROM {{t}} WHERE {{f}} = {LATE}")
    clause = "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, {f} = excluded.{f}"
    if using == "mariadb":
        clause = "ON DUPLICATE KEY UPDATE balance = VALUES(balance), {f} = VALUES({f})"
    with pytest.raises(IntegrityError):
        execute(using, f"INSERT INTO {{t}} (id, {{f}}, balance) VALUES ({pk}, {EARLY}, 9) {clause}")
    assert rows(using) == [(4, LATE), (1, 0)]


def test_backwards_and_the_check(using: str, migrate: Any) -> None:
    migrate(1)
    ((name,),) = triggers(using)
    postgres = using == "postgres"
    execute(using, f"DROP TRIGGER {name}" + (" ON {t}" if postgres else ""))
    (found,) = check_fences(None, [using])
    assert found.id == "distlock.W003"
    assert "'fence' of the table 'dataapp_vault'" in found.msg
    assert not check_fences(None, None), "not without --database"
    migrate(1)  # nothing to apply, but restored
    assert triggers(using) == [(name,)]
    migrate(0)
    assert not triggers(using)
    if postgres:
        assert not run(using, "SELECT proname FROM pg_proc WHERE proname = %s", name)


def test_without_more_a_new_table_has_no_trigger(using: str, migrate: Any) -> None:
    """What restore() is for, which the command calls: SQLite makes a new table, MariaDB keeps the old name of the
    column."""
    migrate(2, restoring=False)
    put(using, VAULT, ", note", ", 'n'")
    assert enforced(using) is (using != "default")
    assert len(check_fences(None, [using])) == (using == "default")
    if using == "mariadb":
        migrate(5, restoring=False)
        with pytest.raises(OperationalError, match="Unknown column 'fence' in 'NEW'"):
            execute(using, "UPDATE {t} SET balance = 2", SAFE)
        assert len(check_fences(None, [using])) == 1
    migrate(1, restoring=False)
    call_command("migrate", "dataapp", "0002", database=using, verbosity=0)
    assert not check_fences(None, [using])


def test_relaxed_in_the_run_that_has_renamed_it(using: str, migrate: Any) -> None:
    """The trigger is found although neither it nor, on MariaDB, its column is called so any more."""
    migrate(6, restoring=False)
    execute(using, "INSERT INTO {t} (balance, note) VALUES (1, 'n')", SAFE)
    execute(using, "UPDATE {t} SET balance = 2", SAFE)
    assert not triggers(using)


def test_it_outlives_every_change_and_its_way_back(using: str, migrate: Any) -> None:
    for target in (1, 2, 3, 5, 6, 5, 3, 1):
        migrate(target)
        assert not check_fences(None, [using])
        table, fence = VAULT if target < 3 else SAFE, "token" if target == 5 else "fence"
        if target == 6:  # RelaxFence and RemoveField
            execute(using, "UPDATE {t} SET balance = 3", table)
            assert not triggers(using)
            continue
        if not execute(using, f"SELECT 1 FROM {{t}} WHERE {{f}} > {EARLY}", table, fence):
            put(using, table, *((", note", ", 'n'") if target > 1 else ()), fence=fence)
        assert enforced(using, table, fence), target
        assert len(triggers(using)) == 1


@pytest.mark.parametrize("migrate", ["made_again"], indirect=True)
def test_another_model_of_the_same_name_has_no_trigger(using: str, migrate: Any) -> None:
    """EnforceFence, DeleteModel, CreateModel: only the first one asked for it. And all the way back."""
    for target in (1, 2, 3, 2, 1):
        migrate(target)
        assert not check_fences(None, [using]), target
        if target != 2:
            put(using)
            assert enforced(using) is (target == 1), target


@pytest.mark.parametrize("migrate", ["renamed_and_made"], indirect=True)
def test_a_new_table_by_the_old_name_of_another(using: str, migrate: Any) -> None:
    """On PostgreSQL a renamed table keeps its trigger and function, and the new one asks for the same function."""
    tables = (VAULT, "dataapp_safe")
    migrate(3)
    for table in tables:
        put(using, table)
    assert [enforced(using, table) for table in tables] == [True, True]
    migrate(4)
    assert [enforced(using, table) for table in tables] == [False, True]


def apply(using: str, operation: EnforceFence, backwards: bool = False) -> None:
    state = ProjectState.from_apps(apps)
    go = operation.database_backwards if backwards else operation.database_forwards
    with connections[using].schema_editor() as editor:
        go("dataapp", editor, state, state)


def test_a_name_that_must_be_quoted_and_the_orm(using: str) -> None:
    """ORM writes that name the fence meet the trigger too; fenced() is in front of it."""
    apply(using, EnforceFence("FencedLedger"))
    apply(using, EnforceFence("FencedLedger"))  # a second one takes the place of the first
    try:
        row = FencedLedger.objects.using(using).create(fence=LATE)
        told = "stale fencing token: the fence of dataapp O'Hara Fenced must not fall"
        with pytest.raises(IntegrityError, match=told):
            FencedLedger.objects.using(using).filter(pk=row.pk).update(fence=EARLY)
        row.fence = EARLY
        with pytest.raises(IntegrityError, match="must not fall"), transaction.atomic(using):
            models.Model.save_base(row, using=using)
        with pytest.raises(LockLost):
            row.save(fence=EARLY)
    finally:
        apply(using, EnforceFence("FencedLedger"), backwards=True)
    FencedLedger.objects.using(using).filter(pk=row.pk).update(fence=EARLY)


class Elsewhere:
    def allow_migrate(self, *args: Any, **hints: Any) -> bool:
        return False


@pytest.mark.parametrize("using", ["default"])
def test_the_router_is_asked(using: str) -> None:
    with override_settings(DATABASE_ROUTERS=[Elsewhere()]):
        apply(using, EnforceFence("FencedLedger"))
    row = FencedLedger.objects.using(using).create(fence=LATE)
    assert FencedLedger.objects.using(using).filter(pk=row.pk).update(fence=EARLY) == 1


def test_it_is_written_to_a_file_and_squashed() -> None:
    written, imports = OperationWriter(EnforceFence("Register", field="fence"), indentation=0).serialize()
    assert imports == {"import django_distlock.data.fencing.operations"}
    assert "".join(written.split()) == (
        "django_distlock.data.fencing.operations.EnforceFence(model_name='Register',field='fence',),"
    )
    operation = EnforceFence("Register")
    assert operation.formatted_description() == "+ Refuse to lower fence of Register"
    assert operation.migration_name_fragment == "enforce_register_fence"
    assert operation.reversible
    assert not operation.elidable
    operations = [MADE[0], migrations.CreateModel("B", [KEY]), FENCED, migrations.AddField("B", "x", NUMBER)]
    operations.append(migrations.AlterField("Vault", "fence", models.BigIntegerField(default=0)))
    done = MigrationOptimizer().optimize(operations, "dataapp")
    kinds = ["CreateModel", "EnforceFence", "CreateModel", "AlterField"]
    assert [type(one).__name__ for one in done] == kinds, "other operations pass it"


BAD: list[tuple[Any, type[Exception], str]] = [
    ((1,), TypeError, "model_name must be a str, not int."),
    (("Register", None), TypeError, "field must be a str, not NoneType."),
    (("app.Register",), ValueError, "model_name must be the name of a model or field without its app"),
    (("",), ValueError, "model_name must be the name of a model or field without its app, not ''."),
    (("Register", "fence; DROP TABLE x"), ValueError, "field must be the name of"),
    (("Register", "fense"), FieldDoesNotExist, "has no field named 'fense'"),
    (("Register", "owner"), ValueError, "owner of Register is no integer field"),
    (("CashRegister", "fence"), ValueError, "fence is a field of Register; name that model"),
]


@pytest.mark.parametrize("using", ["postgres"])
def test_bad_input(using: str) -> None:
    for arguments, error, message in BAD:
        with pytest.raises(error, match=message):
            apply(using, EnforceFence(*arguments))
