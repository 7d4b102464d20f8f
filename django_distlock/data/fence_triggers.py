"""The triggers that EnforceFence has made: are they still there?

SQLite has no ALTER TABLE for most changes. Django makes a new table, copies the rows and drops the old table, and its
triggers go with it without a word: https://sqlite.org/lang_altertable.html#otheralter. So they are made anew at the
end of each ``migrate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import DeleteModel, RenameField, RenameModel, SeparateDatabaseAndState
from django.db.migrations.state import ProjectState

from .operations import EnforceFence, trigger_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.apps import AppConfig
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.migrations import Migration
    from django.db.migrations.operations.base import Operation
    from django.db.models import Model

Fence = tuple[str, str, str]  # app label, model in lower case, field in lower case


def restore(using: str, plan: Sequence[Any] = (), **kwargs: Any) -> None:
    """Make the triggers that a change of their table has dropped. For ``post_migrate``."""
    connection = connections[using]
    if connection.vendor != "sqlite" or not plan:
        return
    missing = list(_missing(connection))
    if missing:
        with connection.schema_editor() as editor:
            for model, field in missing:
                for statement in trigger_of(model, field).create(editor):
                    editor.execute(statement, params=None)


@register("distlock", Tags.database)
def check_fences(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The triggers of the applied migrations; asks the database, so only ``check --database`` runs it."""
    return [
        Warning(
            f"The trigger that keeps {field} of {model._meta.label} from falling is missing in database {alias!r}.",
            hint="An old token can overwrite rows. Apply EnforceFence again in a new migration.",
            id="distlock.W003",
        )
        for alias in databases or ()
        for model, field in _missing(connections[alias])
    ]


def _missing(connection: BaseDatabaseWrapper) -> Iterator[tuple[type[Model], str]]:
    loader = MigrationLoader(connection)
    applied = _applied(loader)
    if not any(isinstance(operation, EnforceFence) for one in applied for operation in _flat(one.operations)):
        return  # the usual case, and the rest is slow
    state = ProjectState(real_apps=loader.unmigrated_apps)
    fences: dict[Fence, None] = {}
    for migration in applied:
        state = migration.mutate_state(state, preserve=False)
        for operation in _flat(migration.operations):
            fences = _after(fences, migration.app_label, operation)
    for label, name, field in fences:
        model = state.apps.get_model(label, name)
        if router.allow_migrate_model(connection.alias, model) and not trigger_of(model, field).exists(connection):
            yield model, field


def _applied(loader: MigrationLoader) -> list[Migration]:
    """In the order in which they depend on each other."""
    keys: dict[tuple[str, str], None] = {}
    for leaf in loader.graph.leaf_nodes():
        keys.update(dict.fromkeys(loader.graph.forwards_plan(leaf)))
    return [loader.graph.nodes[key] for key in keys if key in loader.applied_migrations]


def _flat(operations: Iterable[Operation]) -> Iterator[Operation]:
    for operation in operations:
        if isinstance(operation, SeparateDatabaseAndState):
            yield from _flat(operation.database_operations)
        else:
            yield operation


def _after(fences: dict[Fence, None], label: str, operation: Operation) -> dict[Fence, None]:
    """The fences after this operation."""
    if isinstance(operation, EnforceFence):
        return {**fences, (label, operation.model_name.lower(), operation.field.lower()): None}
    renamed: dict[Fence, None] = {}
    for fence in fences:
        one, model, field = fence
        if one == label and isinstance(operation, DeleteModel) and model == operation.name_lower:
            continue
        if one == label and isinstance(operation, RenameModel) and model == operation.old_name_lower:
            model = operation.new_name_lower
        if one == label and isinstance(operation, RenameField) and model == operation.model_name_lower:
            field = operation.new_name_lower if field == operation.old_name_lower else field
        renamed[one, model, field] = None
    return renamed
