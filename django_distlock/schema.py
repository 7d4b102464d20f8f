"""Tables that ``flush`` leaves alone, and the migration operation that makes them.

``manage.py flush`` and every ``TransactionTestCase`` empty the tables of managed models. A site key made anew, or
leases gone from under their holders, would end exclusion between running processes without a word. So these models are
unmanaged, and a migration operation of our own creates their tables.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections, migrations, models, router, transaction
from django.db.migrations.operations.base import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django.apps.registry import Apps
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState


class Pruner(NamedTuple):
    """How `distlock prune` deletes what a part of the package keeps: ``delete(database, days)`` deletes what is older,
    in each of ``databases()``, and returns how much."""

    databases: Callable[[], Iterable[str]]
    delete: Callable[[str, float], int]


# By the name of what is kept. Each part of the package registers its own.
pruners: dict[str, Pruner] = {}


class AsciiField(models.CharField):  # type: ignore[type-arg]  # not subscriptable at run time
    """Text of ASCII characters, compared byte by byte: an index entry is as small as it can be.

    PostgreSQL gets the long spelling of varchar: for the short one Django adds an index for LIKE to each unique column.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "postgresql":
            return f'character varying({self.max_length}) COLLATE "C"'
        if connection.vendor == "mysql":
            return f"varchar({self.max_length}) CHARACTER SET ascii COLLATE ascii_bin"
        return super().db_type(connection)


class CreateKeptTable(Operation):
    """Create the table of a model whose ``CreateModel`` does not, or drop it on the way back.

    A table that exists already is left as it is, so that two ``migrate`` at the same time both succeed. Of a managed
    model, which flush may empty, ``CreateModel`` has to be among ``state_operations``.
    ``unless_vendor`` names the databases that do without the table.
    """

    reversible = True

    def __init__(self, name: str, unless_vendor: Sequence[str] = ()) -> None:
        self.name = name
        self.unless_vendor = tuple(unless_vendor)

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The model itself is in the state by ``CreateModel``."""

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
        """The model, unless its table is not wanted on this database."""
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


class AddKeptField(migrations.AddField):
    """Add a column to such a table, or drop it on the way back. A column that exists already is left as it is."""

    def __init__(self, model_name: str, name: str, field: models.Field[Any, Any], unless_vendor: Sequence[str] = ()):
        super().__init__(model_name, name, field)
        self.unless_vendor = tuple(unless_vendor)

    def allow_migrate_model(self, connection_alias: Any, model: type[models.Model]) -> bool:
        # Django's own says no to every unmanaged model
        return connections[connection_alias].vendor not in self.unless_vendor and router.allow_migrate(
            connection_alias, model._meta.app_label, model_name=model._meta.model_name
        )

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        connection = schema_editor.connection
        _unless_there(
            schema_editor,
            lambda: super(AddKeptField, self).database_forwards(app_label, schema_editor, from_state, to_state),
            lambda: _has_column(connection, to_state.apps.get_model(app_label, self.model_name), self.name),
        )


class AddKeptIndex(migrations.AddIndex):
    """Add an index to such a table, or drop it on the way back. One that exists already is left as it is."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        _unless_there(
            schema_editor,
            lambda: super(AddKeptIndex, self).database_forwards(app_label, schema_editor, from_state, to_state),
            lambda: _has_index(schema_editor.connection, model, self.index.name),
        )


def _unless_there(
    schema_editor: BaseDatabaseSchemaEditor, create: Callable[[], None], is_there: Callable[[], bool]
) -> None:
    """Create something, unless it exists already, perhaps since a moment ago.

    Tried first and asked later: on SQLite a transaction that has read cannot write once another process has written.
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


def _has_column(connection: BaseDatabaseWrapper, model: type[models.Model], name: str) -> bool:
    with connection.cursor() as cursor:
        columns: Any = connection.introspection.get_table_description(cursor, model._meta.db_table)
    return connection.introspection.identifier_converter(name) in {column.name for column in columns}
