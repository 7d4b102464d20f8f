"""Tables that ``flush`` leaves alone, the migration operation that creates them, and the clock of their times.

``manage.py flush`` and every ``TransactionTestCase`` empty the tables of managed models. With a new site key, or
without the leases that are held, running processes would no longer exclude each other. So these models are unmanaged,
and :class:`CreateKeptModel` creates their tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, models, router
from django.db.migrations.operations import CreateModel

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


class CreateKeptModel(CreateModel):
    """``CreateModel`` that creates the table of an unmanaged model, too, and no index but those of its ``Meta``.

    Django's index for LIKE on the primary key would cost each write. ``unless_vendor``: databases without the table.
    """

    def __init__(self, name: str, fields: Any, options: dict[str, Any], unless_vendor: Sequence[str] = ()) -> None:
        self.unless_vendor = tuple(unless_vendor)
        super().__init__(name, fields, options)

    def allow_migrate_model(self, connection_alias: BaseDatabaseWrapper | str, model: type[models.Model]) -> bool:
        """As for a managed model."""
        alias = str(connection_alias)
        return connections[alias].vendor not in self.unless_vendor and router.allow_migrate_model(alias, model)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        apps: Apps = to_state.apps
        model = apps.get_model(app_label, self.name)
        managed, model._meta.managed = model._meta.managed, False  # create_model() then leaves the indexes out
        super().database_forwards(app_label, schema_editor, from_state, to_state)
        model._meta.managed = managed
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            for index in model._meta.indexes:
                schema_editor.add_index(model, index)
