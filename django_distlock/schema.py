"""Tables that ``flush`` leaves alone, the migration operation that creates them, and the clock of their times.

``manage.py flush`` and every ``TransactionTestCase`` empty the tables of managed models. With a new site key, or
without the leases that are held, running processes would no longer exclude each other. So these models are unmanaged,
and :class:`CreateKeptTable` creates their tables.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections, models, router, transaction
from django.db.migrations.operations.base import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django.apps.registry import Apps
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

# The present time in microseconds since 1970. ``now()`` stands still in a transaction, and local time does not tell the
# two hours apart that are one on the clock when daylight saving ends.
NOW = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


class Pruner(NamedTuple):
    """How `distlock prune` deletes what a part of the package keeps: ``delete(database, days)`` deletes what is older,
    in each of ``databases()``, and returns how much."""

    databases: Callable[[], Iterable[str]]
    delete: Callable[[str, float], int]


def schema_of(alias: str) -> str:
    """The schema that the connection of this thread works in, as django-tenants keeps it; else ""."""
    return str(getattr(connections[alias], "schema_name", None) or "")


class Tenant:
    """The schema that the connection of this thread works in, for another thread that works for it.

    django-tenants and django-tenant-schemas keep it on the connection, and set the search path at each statement. A
    ``SET search_path`` through a cursor is not seen.
    """

    def __init__(self, alias: str) -> None:
        connection: Any = connections[alias]
        self.alias = alias
        self._tenant = getattr(connection, "tenant", None)
        self._include_public = getattr(connection, "include_public_schema", True)

    def enter(self) -> None:
        """Let the connection of the calling thread work in that schema."""
        if self._tenant is not None:
            connection: Any = connections[self.alias]
            connection.set_tenant(self._tenant, self._include_public)


class CreateKeptTable(Operation):
    """Create the table and the indexes of a model whose ``CreateModel`` does not; its reverse drops the table.

    What exists already is left as it is, so that two ``migrate`` at the same time both succeed. The ``CreateModel`` of
    a managed model has to be among ``state_operations``. ``unless_vendor`` names databases that do not get the table.
    """

    reversible = True

    def __init__(self, name: str, unless_vendor: Sequence[str] = ()) -> None:
        self.name = name
        self.unless_vendor = tuple(unless_vendor)

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the state alone: ``CreateModel`` adds the model."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = self._model(app_label, schema_editor, to_state)
        if model is None:
            return
        connection = schema_editor.connection
        managed, model._meta.managed = model._meta.managed, False  # create_model then leaves the indexes out
        try:
            _unless_there(schema_editor, lambda: schema_editor.create_model(model), lambda: _exists(connection, model))
        finally:
            model._meta.managed = managed
        for index in model._meta.indexes:
            _unless_there(
                schema_editor,
                lambda index=index: schema_editor.add_index(model, index),  # type: ignore[misc]
                lambda index=index: _has_index(connection, model, index.name),  # type: ignore[misc]
            )

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = self._model(app_label, schema_editor, to_state)
        if model is not None and (schema_editor.collect_sql or _exists(schema_editor.connection, model)):
            schema_editor.delete_model(model)

    def _model(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState
    ) -> type[models.Model] | None:
        """The model, or None if this database does not get its table."""
        connection = schema_editor.connection
        if connection.vendor in self.unless_vendor:
            return None
        if not router.allow_migrate(connection.alias, app_label, model_name=self.name.lower()):
            return None
        apps: Apps = state.apps
        return apps.get_model(app_label, self.name)

    def describe(self) -> str:
        return f"Create the table of {self.name}, unless it is there"

    @property
    def migration_name_fragment(self) -> str:
        return f"kept_{self.name.lower()}"


def _unless_there(
    schema_editor: BaseDatabaseSchemaEditor, create: Callable[[], None], is_there: Callable[[], bool]
) -> None:
    """Create something unless it exists.

    The check follows the attempt: on SQLite a transaction that has read cannot write after another process has written.
    """
    connection = schema_editor.connection
    if schema_editor.collect_sql:
        create()
        return
    try:
        with transaction.atomic(connection.alias) if connection.features.can_rollback_ddl else nullcontext():
            create()
    except DatabaseError:
        if not is_there():
            raise


def _exists(connection: BaseDatabaseWrapper, model: type[models.Model]) -> bool:
    with connection.cursor() as cursor:
        names: Any = connection.introspection.table_names(cursor)
    return connection.introspection.identifier_converter(model._meta.db_table) in names


def _has_index(connection: BaseDatabaseWrapper, model: type[models.Model], name: str) -> bool:
    with connection.cursor() as cursor:
        found: Any = connection.introspection.get_constraints(cursor, model._meta.db_table)
    return connection.introspection.identifier_converter(name) in found
