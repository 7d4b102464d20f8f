"""The triggers that EnforceFence has made: are they still there?

- SQLite has no ALTER TABLE for most changes. Django makes a new table, copies the rows and drops the old table, and its
  triggers go with it without a word: https://sqlite.org/lang_altertable.html#otheralter
- MySQL and MariaDB leave the old name of a renamed column in the trigger, and then refuse every UPDATE of the table.

So they are made anew at the end of each ``migrate`` that has done something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import DeleteModel, RemoveField, RenameField, RenameModel
from django.db.migrations.state import ProjectState

from django_distlock.checks.links import linked

from .operations import EnforceFence, RelaxFence, trigger_of
from .trigger_sql import VENDORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.apps import AppConfig
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.migrations import Migration
    from django.db.migrations.operations.base import Operation

    from .trigger_sql import FenceTrigger

Fence = tuple[str, str, str]  # app label, model in lower case, field in lower case


def restore(using: str, plan: Sequence[Any] = (), **kwargs: Any) -> None:
    """Make anew what a change of the table has dropped or broken. For ``post_migrate``."""
    connection = connections[using]
    if not plan:  # flush says post_migrate too
        return
    missing = list(_missing(connection))
    if missing:
        with connection.schema_editor() as editor:
            for trigger in missing:
                for statement in trigger.create(editor):
                    editor.execute(statement, params=None)


@register(Tags.database)
@linked
def check_fences(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The triggers of the applied migrations; asks the database, so only ``check --database`` runs it."""
    return [
        Warning(
            f"The trigger that keeps {trigger.column!r} of the table {trigger.table!r} from falling is missing in the "
            f"database {alias!r}.",
            hint="An old token can overwrite rows. Apply EnforceFence again in a new migration.",
            id="distlock.W003",
        )
        for alias in databases or ()
        for trigger in _missing(connections[alias])
    ]


def _missing(connection: BaseDatabaseWrapper) -> Iterator[FenceTrigger]:
    if connection.vendor not in VENDORS:
        return
    loader = MigrationLoader(connection)
    applied = _applied(loader)
    if not any(isinstance(operation, EnforceFence) for one in applied for operation in _flat(one.operations)):
        return  # the usual case, and the rest is slow
    state = ProjectState(real_apps=loader.unmigrated_apps)
    fences: set[Fence] = set()
    for migration in applied:
        for operation in migration.operations:
            operation.state_forwards(migration.app_label, state)
            for part in _flat([operation]):
                fences = _after(fences, migration.app_label, part)
    for label, name, field in sorted(fences):
        try:
            model = state.apps.get_model(label, name)
            trigger = trigger_of(model, field)
        except (LookupError, FieldDoesNotExist, ValueError):
            continue  # the model or the field is gone
        if router.allow_migrate_model(connection.alias, model) and not trigger.works(connection):
            yield trigger


def _applied(loader: MigrationLoader) -> list[Migration]:
    """In the order in which they depend on each other."""
    keys: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        keys.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return [loader.graph.nodes[key] for key in keys if key in loader.applied_migrations]


def _flat(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Those inside SeparateDatabaseAndState and RunSQL too."""
    for operation in operations:
        yield operation
        yield from _flat(getattr(operation, "database_operations", ()))
        yield from _flat(getattr(operation, "state_operations", None) or ())


def _after(fences: set[Fence], label: str, operation: Operation) -> set[Fence]:
    """The fences after this operation."""
    if isinstance(operation, EnforceFence):
        fence = (label, operation.model_name.lower(), operation.field.lower())
        return fences - {fence} if isinstance(operation, RelaxFence) else fences | {fence}
    changed = (fence if fence[0] != label else _changed(fence, operation) for fence in fences)
    return {fence for fence in changed if fence is not None}


def _changed(fence: Fence, operation: Operation) -> Fence | None:
    """The fence by its new name; None if it went with its model or field: one of the same name later is another."""
    label, model, field = fence
    if isinstance(operation, RenameModel) and model == operation.old_name_lower:
        return label, operation.new_name_lower, field
    if isinstance(operation, RenameField) and (model, field) == (operation.model_name_lower, operation.old_name_lower):
        return label, model, operation.new_name_lower
    if isinstance(operation, DeleteModel) and model == operation.name_lower:
        return None
    if isinstance(operation, RemoveField) and (model, field) == (operation.model_name_lower, operation.name_lower):
        return None
    return fence
