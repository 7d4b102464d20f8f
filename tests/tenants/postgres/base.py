"""What matters here of django-tenants' database backend: the schema is a state of the wrapper. With the package itself
(4.0, DISTLOCK_TENANTS_ENGINE names its backend) the tests pass as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.db.backends.postgresql import base

PUBLIC = "public"


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]
    tenant, include_public_schema = SimpleNamespace(schema_name=PUBLIC), True

    @property
    def schema_name(self) -> str:
        return str(self.tenant.schema_name)

    def set_tenant(self, tenant: Any, include_public: bool = True) -> None:
        self.tenant, self.include_public_schema = tenant, include_public

    def set_schema(self, schema_name: str, include_public: bool = True) -> None:
        self.set_tenant(SimpleNamespace(schema_name=schema_name), include_public)

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)
        path = [self.schema_name, PUBLIC] if self.include_public_schema else [self.schema_name]
        with self.connection.cursor() as other:
            other.execute(f"SET search_path = {', '.join(path)}")
        return cursor
