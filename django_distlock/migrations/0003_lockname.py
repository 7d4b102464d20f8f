from __future__ import annotations

from django.db import migrations, models

from django_distlock.schema import AsciiField, CreateKeptTable


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0002_heldlock")]

    operations = [
        migrations.CreateModel(
            name="LockName",
            fields=[
                ("key", AsciiField(db_column="lock_key", max_length=64, primary_key=True, serialize=False)),
                ("alias", AsciiField(max_length=255)),
                ("name", models.TextField()),
                ("other", models.TextField()),
                ("seen_at", models.BigIntegerField()),
                ("session", models.BigIntegerField()),
                ("since", models.BigIntegerField()),
                ("holder", AsciiField(max_length=255)),
            ],
            options={
                "db_table": "django_distlock_name",
                "default_permissions": (),
                "managed": False,
            },
        ),
        # No engine on SQLite hashes the names that it keeps.
        CreateKeptTable("LockName", unless_vendor=["sqlite"]),
    ]
