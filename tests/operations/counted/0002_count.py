from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


def index(apps: Any, schema_editor: Any) -> None:
    """On PostgreSQL in a way that waits for the end of every statement that runs."""
    concurrently = "CONCURRENTLY" if schema_editor.connection.vendor == "postgresql" else ""
    schema_editor.execute(f"CREATE INDEX {concurrently} counted_n ON counted (n)")


class Migration(migrations.Migration):
    atomic = False
    dependencies: ClassVar = [("dataapp", "0001_table")]
    operations: ClassVar = [migrations.RunSQL("UPDATE counted SET n = n + 1"), migrations.RunPython(index)]
