"""Migration operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import NotSupportedError, models, router
from django.db.migrations.operations.base import Operation, OperationCategory

from .tokens import FENCE
from .trigger_sql import VENDORS, FenceTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState


class EnforceFence(Operation):
    """Make the database refuse every UPDATE that lowers the fence of a row.

    A trigger on PostgreSQL, MySQL, MariaDB and SQLite; NotSupportedError elsewhere. It raises an IntegrityError whose
    message names the fence. An UPDATE that leaves the fence as it is passes: a trigger cannot see whether a statement
    has named a column. ``field`` is an integer field of the model's own table. MySQL with a binary log wants SUPER or
    ``log_bin_trust_function_creators``: https://dev.mysql.com/doc/refman/8.4/en/stored-programs-logging.html
    """

    reversible = True
    category = OperationCategory.ADDITION

    def __init__(self, model_name: str, field: str = FENCE) -> None:
        for argument, value in (("model_name", model_name), ("field", field)):
            if not isinstance(value, str):
                raise TypeError(f"{argument} must be a str, not {type(value).__name__}.")
            if not value.isidentifier():
                raise ValueError(f"{argument} must be the name of a model or field without its app, not {value!r}.")
        self.model_name = model_name
        self.field = field

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the state alone: it has no triggers."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._execute(FenceTrigger.create, app_label, schema_editor, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._execute(FenceTrigger.drop, app_label, schema_editor, to_state)

    def _execute(
        self,
        statements: Callable[[FenceTrigger, BaseDatabaseSchemaEditor], list[str]],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        state: ProjectState,
    ) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        connection = schema_editor.connection
        if not router.allow_migrate_model(connection.alias, model):
            return
        if connection.vendor not in VENDORS:
            raise NotSupportedError(f"{type(self).__name__} has no trigger for {connection.vendor}.")
        for statement in statements(trigger_of(model, self.field), schema_editor):
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        return f"Refuse to lower {self.field} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"enforce_{self.model_name.lower()}_{self.field.lower()}"

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def references_field(self, model_name: str, name: str, app_label: str) -> bool:
        return self.references_model(model_name, app_label) and name.lower() == self.field.lower()


class RelaxFence(EnforceFence):
    """Undo :class:`EnforceFence`, before the field or its parent class is removed. Its reverse creates the trigger."""

    category = OperationCategory.REMOVAL

    def database_forwards(self, *args: Any) -> None:
        super().database_backwards(*args)

    def database_backwards(self, *args: Any) -> None:
        super().database_forwards(*args)

    def describe(self) -> str:
        return f"No longer refuse to lower {self.field} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"relax_{self.model_name.lower()}_{self.field.lower()}"


def trigger_of(model: type[models.Model], name: str) -> FenceTrigger:
    """The trigger of this field; ValueError if it cannot have one."""
    field = model._meta.get_field(name)
    if not isinstance(field, models.IntegerField):
        raise ValueError(f"EnforceFence: {name} of {model.__name__} is no integer field.")
    if field.model._meta.concrete_model is not model._meta.concrete_model:
        raise ValueError(f"EnforceFence: {name} is a field of {field.model.__name__}; name that model.")
    return FenceTrigger(model._meta.db_table, str(field.column))
