"""enforce_fence: the database refuses to lower a fence, whoever writes and whatever became of the table since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connections, models, transaction
from django.test import override_settings

from django_distlock import LockLost
from django_distlock.checks.servers import check_fences
from django_distlock.data.fencing.triggers import reconcile
from tests.data.app.models import CashRegister, FencedLedger, Register
from tests.data.world import DATABASES, EARLY, LATE, register, rows, run, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIGGERS = {
    "postgres": "SELECT tgname FROM pg_trigger WHERE tgname LIKE %s",
    "mariadb": "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_NAME LIKE %s "
    "AND TRIGGER_SCHEMA = DATABASE()",
    "default": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE %s",
}


@pytest.fixture(params=DATABASES)
def using(request: pytest.FixtureRequest) -> str:
    """The SQL of triggers is each engine's own."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def migrate(using: str, fresh: None) -> Iterator[Any]:
    """What the end of migrate does; what a test has asked for is dropped again."""

    def go() -> None:
        reconcile(using, plan=[])

    yield go
    with pytest.MonkeyPatch.context() as patch:
        for model in (Register, FencedLedger):
            patch.setattr(model, "enforce_fence", False)
        go()


def enforce(monkeypatch: pytest.MonkeyPatch, *asking: Any, value: bool = True) -> None:
    for model in asking:
        monkeypatch.setattr(model, "enforce_fence", value)


def triggers(using: str) -> set[str]:
    """Those of other apps do not count."""
    found = {name for (name,) in run(using, TRIGGERS[using], "distlock_fence_%")}
    return found - others.setdefault(using, found)


others: dict[str, set[str]] = {}


@pytest.fixture(autouse=True)
def count_others(using: str, fresh: None) -> None:
    others.pop(using, None)
    triggers(using)


def lower(row: Any) -> None:
    type(row)._base_manager.using(row._state.db).filter(pk=row.pk).update(fence=EARLY)


def missing(using: str) -> list[str]:
    return [found.msg for found in check_fences(None, [using])]


def test_whoever_writes(using: str, migrate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(monkeypatch, Register)
    migrate()
    row = register(using, fence=LATE)
    quoted = connections[using].ops.quote_name
    table = quoted("dataapp_register")
    told = "stale fencing token: the fence of dataapp_register must not fall"
    with pytest.raises(IntegrityError, match=told):
        run(using, f"UPDATE {table} SET balance = 9, fence = {EARLY}")
    run(using, f"UPDATE {table} SET balance = 2, fence = {LATE}")
    assert stored(row) == (2, LATE)
    run(using, f"UPDATE {table} SET balance = 4")
    assert stored(row) == (4, LATE), "a writer that says nothing of the fence is not refused"
    other = register(using)
    with pytest.raises(IntegrityError):
        rows(using).update(fence=EARLY)  # one late row refuses the statement
    assert stored(other) == (0, 0)
    clause = "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence"
    if using == "mariadb":
        clause = "ON DUPLICATE KEY UPDATE balance = VALUES(balance), fence = VALUES(fence)"
    with pytest.raises(IntegrityError):
        run(using, f"INSERT INTO {table} (id, owner, fence, balance) VALUES ({row.pk}, 'x', {EARLY}, 9) {clause}")
    row.fence = EARLY
    with pytest.raises(IntegrityError), transaction.atomic(using):
        models.Model.save_base(row, using=using)
    with pytest.raises(LockLost):  # the condition of a fenced write comes first
        row.save(fence=EARLY)
    assert stored(row) == (4, LATE)


def test_what_is_wanted_is_made_and_the_rest_dropped(using: str, migrate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By migrate, also if there is nothing to apply; one for the model with its proxies and children."""
    assert not missing(using)
    enforce(monkeypatch, Register, FencedLedger)
    assert CashRegister.enforce_fence
    told = missing(using)
    assert len(told) == 2
    assert any("dataapp.Register" in text for text in told)
    assert not check_fences(None, None)
    reconcile(using)
    assert not triggers(using), "flush sends post_migrate as well, without a plan"
    call_command("migrate", "django_distlock", database=using, verbosity=0)
    made = triggers(using)
    assert (len(made), missing(using)) == (2, [])
    migrate()
    assert triggers(using) == made
    for row in (register(using, fence=LATE), FencedLedger.objects.using(using).create(fence=LATE)):
        with pytest.raises(IntegrityError, match="stale fencing token"):
            lower(row)
    enforce(monkeypatch, Register, value=False)
    migrate()
    assert len(triggers(using)) == 1
    lower(register(using, fence=LATE))
    if using == "postgres":
        functions = {
            name for (name,) in run(using, "SELECT proname FROM pg_proc WHERE proname LIKE 'distlock_fence_%'")
        }
        assert not functions & (made - triggers(using))


def test_it_outlives_every_change_of_its_table(using: str, migrate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite makes a new table, without the trigger; a renamed table keeps it under its old name."""
    enforce(monkeypatch, FencedLedger)
    migrate()
    field, wider = models.IntegerField(default=0), models.BigIntegerField(default=0)
    for number in (field, wider):
        number.set_attributes_from_name("amount")
        number.model = FencedLedger
    old, new = FencedLedger._meta.db_table, "dataapp_renamed"
    with connections[using].schema_editor() as editor:
        editor.alter_field(FencedLedger, field, wider)
    assert len(missing(using)) == (using == "default")
    migrate()
    assert not missing(using)
    with connections[using].schema_editor() as editor:
        editor.alter_db_table(FencedLedger, old, new)
    try:
        with monkeypatch.context() as renamed:
            renamed.setattr(FencedLedger._meta, "db_table", new)
            migrate()
            run(using, f"INSERT INTO {new} (fence, amount) VALUES ({LATE}, 1)")
            with pytest.raises(IntegrityError):
                run(using, f"UPDATE {new} SET fence = {EARLY}")
            assert (len(triggers(using)), missing(using)) == (1, [])
    finally:
        with connections[using].schema_editor() as editor:
            editor.alter_db_table(FencedLedger, new, old)
            editor.alter_field(FencedLedger, wider, field)
    migrate()
    assert (len(triggers(using)), missing(using)) == (1, [])


def test_a_column_that_is_renamed(using: str, migrate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On MySQL and MariaDB the trigger keeps the old name, and every UPDATE fails until migrate has ended."""
    enforce(monkeypatch, Register)
    migrate()
    field: Any = Register._meta.get_field("fence")
    table = connections[using].ops.quote_name("dataapp_register")
    run(using, f"ALTER TABLE {table} RENAME COLUMN fence TO token")
    try:
        with monkeypatch.context() as renamed:
            renamed.setattr(field, "column", "token")
            migrate()
            run(using, f"INSERT INTO {table} (owner, token, balance) VALUES ('x', {LATE}, 1)")
            run(using, f"UPDATE {table} SET balance = 2")
            with pytest.raises(IntegrityError):
                run(using, f"UPDATE {table} SET token = {EARLY}")
            assert (len(triggers(using)), missing(using)) == (1, [])
    finally:
        enforce(monkeypatch, Register, value=False)
        migrate()
        run(using, f"ALTER TABLE {table} RENAME COLUMN token TO fence")


class Elsewhere:
    def allow_migrate(self, *args: Any, **hints: Any) -> bool:
        return False


@pytest.mark.parametrize("using", ["default"])
def test_tables_that_are_elsewhere_or_not_made_yet(using: str, migrate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of another project, which may have triggers of the same kind."""
    enforce(monkeypatch, Register, FencedLedger)
    with override_settings(DATABASE_ROUTERS=[Elsewhere()]):
        migrate()
        assert not (triggers(using) | {*missing(using)})
    run(using, "CREATE TABLE dataapp_foreign (id int)")
    run(using, "CREATE TRIGGER distlock_fence_foreign BEFORE UPDATE ON dataapp_foreign BEGIN SELECT 1; END")
    try:
        with monkeypatch.context() as absent:
            absent.setattr(FencedLedger._meta, "db_table", "dataapp_absent")
            migrate()
        assert len(triggers(using)) == 2
        assert "distlock_fence_foreign" in triggers(using)
    finally:
        run(using, "DROP TABLE dataapp_foreign")
