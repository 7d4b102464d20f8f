from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from django.db import migrations, models

import django_distlock.schema
from django_distlock.schema import CreateKeptTable

if TYPE_CHECKING:
    from django.apps.registry import Apps
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_site_key(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Insert a random key of 256 bits if there is none. One that is there is never replaced: running processes use it,
    and another ``migrate`` at the same time may have made it."""
    keys = apps.get_model("django_distlock", "SiteKey").objects.using(schema_editor.connection.alias)
    key = secrets.token_urlsafe(32)
    if schema_editor.connection.features.supports_ignore_conflicts:
        keys.bulk_create([keys.model(id=1, site_key=key)], ignore_conflicts=True)
    else:
        keys.get_or_create(id=1, defaults={"site_key": key})


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="SiteKey",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("site_key", models.CharField(max_length=128)),
            ],
            options={
                "db_table": "django_distlock_sitekey",
                "default_permissions": (),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="LeaseRow",
            fields=[
                ("digest", django_distlock.schema.AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("alias", django_distlock.schema.AsciiField(max_length=255)),
                ("name", models.TextField()),
                ("token", django_distlock.schema.AsciiField(max_length=64)),
                ("fence", models.BigIntegerField()),
                ("acquired_at", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("holder", django_distlock.schema.AsciiField(max_length=255)),
            ],
            options={
                "db_table": "django_distlock_lease",
                "default_permissions": (),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="LeaseTicket",
            fields=[
                ("token", django_distlock.schema.AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("digest", django_distlock.schema.AsciiField(max_length=64)),
                ("arrived", models.BigIntegerField()),
                ("seen", models.BigIntegerField()),
            ],
            options={
                "db_table": "django_distlock_ticket",
                "default_permissions": (),
                "managed": False,
                "indexes": [models.Index(fields=["digest", "arrived"], name="distlock_ticket_queue")],
            },
        ),
        CreateKeptTable("SiteKey"),
        # On SQLite the leases live in a file of their own.
        CreateKeptTable("LeaseRow", unless_vendor=["sqlite"]),
        CreateKeptTable("LeaseTicket", unless_vendor=["sqlite"]),
        migrations.RunPython(make_site_key, migrations.RunPython.noop, hints={"model_name": "sitekey"}),
    ]
