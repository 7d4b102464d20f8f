"""Finds and restores triggers of EnforceFence that are gone.

- SQLite has no ALTER TABLE for most changes. Django makes a new table, copies the rows and drops the old table, and its
  triggers go with it without a word: https://sqlite.org/lang_altertable.html#otheralter
- MySQL and MariaDB leave the old name of a renamed column in the trigger, and then refuse every UPDATE of the table.

So they are created again at the end of each ``migrate`` that has applied something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations import DeleteModel, RemoveField, RenameField, RenameModel
from django.db.migrations.state import ProjectState

from .operations import VENDORS, EnforceFence, RelaxFence, trigger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.migrations.operations.base import Operation

    from .operations import FenceTrigger

Fence = tuple[str, str, str]  # app label, model in lower case, field in lower case


def restore(using: str, plan: Sequence[Any] = (), **kwargs: Any) -> None:
    """Create the triggers again that a change of their table has dropped or broken. Receiver of ``post_migrate``."""
    connection = connections[using]
    if not plan:  # flush sends post_migrate too
        return
    dropped = list(missing(connection))
    if dropped:
        with connection.schema_editor() as editor:
            for trigger in dropped:
                for statement in trigger.create(editor):
                    editor.execute(statement, params=None)


def missing(connection: BaseDatabaseWrapper) -> Iterator[FenceTrigger]:
    """The triggers of the applied migrations that do not work in this database."""
    if connection.vendor not in VENDORS:
        return
    executor = MigrationExecutor(connection)
    loader = executor.loader
    plan = executor.migration_plan(loader.graph.leaf_nodes(), clean_start=True)
    applied = [one for one, _ in plan if (one.app_label, one.name) in loader.applied_migrations]
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


def _flat(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations, and those inside SeparateDatabaseAndState and RunSQL."""
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
    """The fence after this operation, by its new name; None if its model or field was removed."""
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
