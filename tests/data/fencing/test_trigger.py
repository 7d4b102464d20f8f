"""EnforceFence: the database refuses to lower a fence, whoever writes and whatever became of the table since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, OperationalError, connections, migrations, models, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import override_settings

from django_distlock.checks.servers import check_fences
from django_distlock.data import EnforceFence, RelaxFence
from django_distlock.data.fencing.triggers import _after, restore
from tests.data.conftest import DATABASES
from tests.data.fences import EARLY, LATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")
VAULT, SAFE = "dataapp_vault", "dataapp O'Hara Safe"
MODULES = {"dataapp": "tests.data.fence_migrations"}


@pytest.fixture(params=DATABASES)
def alias(request: pytest.FixtureRequest) -> str:
    """The SQL of triggers is each engine's own."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def migrate(alias: str, databases: None, request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """migrate("0002"): the history of the table up to there, without what the command does besides."""
    with override_settings(MIGRATION_MODULES=getattr(request, "param", MODULES)):

        def go(target: str, restoring: bool = True) -> None:
            executor = MigrationExecutor(connections[alias])
            names = sorted(name for app, name in executor.loader.graph.nodes if app == "dataapp")
            full = next((name for name in names if name.startswith(target)), None)
            executor.migrate([("dataapp", full)])
            if restoring:
                restore(alias, plan=[True])

        yield go
        go("zero", restoring=False)


def execute(alias: str, sql: str, table: str = VAULT, parameters: Any = ()) -> list[tuple[Any, ...]]:
    """Raw SQL; {t} and {f} are the table and the fence."""
    quote = connections[alias].ops.quote_name
    with connections[alias].cursor() as cursor:
        cursor.execute(sql.format(t=quote(table), f=quote("fence")), parameters)
        return list(cursor.fetchall()) if cursor.description else []


def put(alias: str, table: str = VAULT, more: str = "", value: str = "", fence: str = "fence") -> None:
    execute(alias, f"INSERT INTO {{t}} ({fence}, balance{more}) VALUES ({LATE}, 1{value})", table)


def balance(alias: str) -> list[tuple[Any, ...]]:
    return execute(alias, "SELECT balance, {f} FROM {t} ORDER BY id")


def balances(alias: str, table: str, fence: str) -> list[tuple[Any, ...]]:
    """Rows that can be lowered."""
    return execute(alias, f"SELECT balance FROM {{t}} WHERE {fence} > {EARLY}", table)


def lower(alias: str, table: str = VAULT, fence: str = "fence") -> None:
    execute(alias, f"UPDATE {{t}} SET balance = 9, {fence} = {EARLY}", table)


def enforced(alias: str, table: str = VAULT, fence: str = "fence") -> bool:
    """Does the database refuse, and takes the rest? Nothing is changed either way."""
    with transaction.atomic(alias):
        execute(alias, "UPDATE {t} SET balance = 2", table)
        execute(alias, f"UPDATE {{t}} SET {fence} = {fence} + 1", table)
        try:
            with transaction.atomic(alias):
                lower(alias, table, fence)
        except IntegrityError:
            return True
        finally:
            transaction.set_rollback(True, alias)
    return False


TRIGGERS = {
    "postgresql": "SELECT tgname FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid WHERE relname IN (%s, %s)",
    "mysql": (
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE IN (%s, %s)"
    ),
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN (%s, %s)",
}


def triggers(alias: str) -> list[Any]:
    return execute(alias, TRIGGERS[connections[alias].vendor], parameters=[VAULT, SAFE])


def test_raw_sql(alias: str, migrate: Any) -> None:
    migrate("0001")
    put(alias)
    with pytest.raises(IntegrityError, match="stale fencing token: the fence of dataapp_vault must not fall"):
        lower(alias)
    execute(alias, f"UPDATE {{t}} SET balance = 2, {{f}} = {LATE}")
    assert balance(alias) == [(2, LATE)]
    execute(alias, "UPDATE {t} SET balance = 4")
    assert balance(alias) == [(4, LATE)], "a writer that says nothing of the fence is not refused"

    execute(alias, "INSERT INTO {t} ({f}, balance) VALUES (0, 1)")
    with pytest.raises(IntegrityError):
        lower(alias)  # one late row refuses the statement
    assert balance(alias) == [(4, LATE), (1, 0)]

    ((pk,),) = execute(alias, f"SELECT id FROM {{t}} WHERE {{f}} = {LATE}")
    if alias == "mariadb":
        clause = "ON DUPLICATE KEY UPDATE balance = VALUES(balance), {f} = VALUES({f})"
    else:
        clause = "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, {f} = excluded.{f}"
    with pytest.raises(IntegrityError):
        execute(alias, f"INSERT INTO {{t}} (id, {{f}}, balance) VALUES ({pk}, {EARLY}, 9) {clause}")
    assert balance(alias) == [(4, LATE), (1, 0)]


def test_backwards_and_the_check(alias: str, migrate: Any) -> None:
    migrate("0001")
    ((name,),) = triggers(alias)
    postgres = alias == "postgres"
    execute(alias, f"DROP TRIGGER {name}" + (" ON {t}" if postgres else ""))
    (found,) = check_fences(None, [alias])
    assert found.id == "distlock.W003"
    assert "'fence' of the table 'dataapp_vault'" in found.msg
    assert not check_fences(None, None), "not without --database"
    migrate("0001")  # nothing to apply, but restored
    assert triggers(alias) == [(name,)]
    migrate("zero")
    assert not triggers(alias)
    if postgres:
        assert not execute(alias, "SELECT proname FROM pg_proc WHERE proname = %s", parameters=[name])


def test_without_more_a_new_table_has_no_trigger(alias: str, migrate: Any) -> None:
    """What restore() is for: SQLite makes a new table, MariaDB keeps the old name of the column."""
    migrate("0002", restoring=False)
    put(alias, VAULT, ", note", ", 'n'")
    assert enforced(alias) is (alias != "default")
    assert len(check_fences(None, [alias])) == (alias == "default")
    if alias == "mariadb":
        migrate("0005", restoring=False)
        with pytest.raises(OperationalError, match="Unknown column 'fence' in 'NEW'"):
            execute(alias, "UPDATE {t} SET balance = 2", SAFE)
        assert len(check_fences(None, [alias])) == 1
        restore(alias, plan=[True])


def test_relaxed_in_the_run_that_has_renamed_it(alias: str, migrate: Any) -> None:
    """The trigger is found although neither it nor, on MariaDB, its column is called so any more."""
    migrate("0006", restoring=False)
    execute(alias, "INSERT INTO {t} (balance, note) VALUES (1, 'n')", SAFE)
    execute(alias, "UPDATE {t} SET balance = 2", SAFE)
    assert not triggers(alias)


def test_the_command_restores_it(alias: str, migrate: Any) -> None:
    call_command("migrate", "dataapp", "0002", database=alias, verbosity=0)
    assert not check_fences(None, [alias])


def test_it_outlives_every_change_and_its_way_back(alias: str, migrate: Any) -> None:
    for target in ("0001", "0002", "0003", "0005", "0006", "0005", "0003", "0001"):
        migrate(target)
        table = VAULT if target < "0003" else SAFE
        fence = "token" if target == "0005" else "fence"
        if target == "0006":  # RelaxFence and RemoveField
            execute(alias, "UPDATE {t} SET balance = 3", table)
            assert not triggers(alias)
            assert not check_fences(None, [alias])
            continue
        if not balances(alias, table, fence):
            put(alias, table, *((", note", ", 'n'") if target > "0001" else ()), fence=fence)
        assert enforced(alias, table, fence), target
        assert not check_fences(None, [alias])
        assert len(triggers(alias)) == 1


@pytest.mark.parametrize("migrate", [{"dataapp": "tests.data.fence_again_migrations"}], indirect=True)
def test_another_model_of_the_same_name_has_no_trigger(alias: str, migrate: Any) -> None:
    """EnforceFence, DeleteModel, CreateModel: only the first one asked for it. And all the way back."""
    for target in ("0001", "0002", "0003", "0002", "0001"):
        migrate(target)
        assert not check_fences(None, [alias]), target
        if target == "0002":
            continue
        put(alias)
        assert enforced(alias) is (target == "0001"), target


FENCED = EnforceFence("Vault")
NUMBER = models.IntegerField(default=0)


HISTORIES: list[tuple[list[Any], set[str]]] = [
    ([FENCED], {"vault.fence"}),
    ([FENCED, RelaxFence("vault")], set()),
    ([FENCED, migrations.DeleteModel("VAULT")], set()),
    ([FENCED, migrations.DeleteModel("Safe")], {"vault.fence"}),
    ([FENCED, migrations.DeleteModel("Vault"), FENCED], {"vault.fence"}),
    ([FENCED, migrations.RemoveField("Vault", "Fence"), migrations.AddField("Vault", "fence", NUMBER)], set()),
    ([FENCED, migrations.RemoveField("vault", "balance")], {"vault.fence"}),
    ([FENCED, migrations.RemoveField("safe", "fence")], {"vault.fence"}),
    ([FENCED, migrations.RenameModel("Vault", "Safe"), migrations.CreateModel("Vault", [])], {"safe.fence"}),
    ([FENCED, migrations.RenameModel("Vault", "Safe"), migrations.DeleteModel("Safe")], set()),
    (
        [FENCED, migrations.RenameField("vault", "fence", "token"), migrations.AddField("vault", "fence", NUMBER)],
        {"vault.token"},
    ),
]


def test_what_is_fenced_after_these_operations() -> None:
    for operations, expected in HISTORIES:
        fences: set[Any] = {("other", "vault", "fence")}
        for operation in operations:
            fences = _after(fences, "dataapp", operation)
        assert {f"{model}.{field}" for label, model, field in fences if label == "dataapp"} == expected
        assert ("other", "vault", "fence") in fences, "another app's model of that name"
