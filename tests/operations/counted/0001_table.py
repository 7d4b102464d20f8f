from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from tests.operations import programs


class Migration(migrations.Migration):
    dependencies: ClassVar = [("django_distlock", "0001_initial")]
    operations: ClassVar = [
        migrations.RunSQL("CREATE TABLE counted (id integer PRIMARY KEY, n integer NOT NULL)"),
        migrations.RunSQL("INSERT INTO counted (id, n) VALUES (1, 0)"),
        # tell the test, which lets it go on when all others wait
        migrations.RunPython(lambda apps, editor: programs.tell("migrating")),
    ]
