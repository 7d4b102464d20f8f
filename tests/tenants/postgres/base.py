"""The part of django-tenants' database backend that matters here: the schema is a state of the wrapper.

With the package itself (4.0) the tests pass as well: name its backend in :data:`tests.tenants.test_tenants.ENGINE`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.db.backends.postgresql import base

PUBLIC = "public"


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]
    include_public_schema = True
    tenant: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_schema(PUBLIC)

    def set_tenant(self, tenant: Any, include_public: bool = True) -> None:
        self.tenant, self.include_public_schema = tenant, include_public
        self.schema_name = tenant.schema_name

    def set_schema(self, schema_name: str, include_public: bool = True) -> None:
        self.set_tenant(SimpleNamespace(schema_name=schema_name), include_public)

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)
        path = [self.schema_name, PUBLIC] if self.include_public_schema else [self.schema_name]
        with self.connection.cursor() as other:
            other.execute(f"SET search_path = {', '.join(path)}")
        return cursor
