from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from django.db import migrations, models

from django_distlock.models import AsciiField
from django_distlock.schema import CreateKeptModel

if TYPE_CHECKING:
    from django.apps.registry import Apps
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_site_key(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Insert a random key of 256 bits if there is none.

    A key that exists is never replaced: running processes use it, and another ``migrate`` at the same time may have
    made it.
    """
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
        CreateKeptModel(
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
        # On SQLite the leases live in a file beside the database, and no backend hashes names.
        CreateKeptModel(
            name="LeaseRow",
            fields=[
                ("digest", AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("alias", AsciiField(max_length=255)),
                ("name", models.TextField()),
                ("token", AsciiField(max_length=64)),
                ("fence", models.BigIntegerField()),
                ("acquired_at", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("holder", AsciiField(max_length=255)),
            ],
            options={
                "db_table": "django_distlock_lease",
                "default_permissions": (),
                "managed": False,
            },
            unless_vendor=["sqlite"],
        ),
        CreateKeptModel(
            name="LeaseTicket",
            fields=[
                ("token", AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("digest", AsciiField(max_length=64)),
                ("arrived", models.BigIntegerField()),
                ("seen", models.BigIntegerField()),
                ("holder", AsciiField(max_length=255, null=True)),
            ],
            options={
                "db_table": "django_distlock_ticket",
                "default_permissions": (),
                "managed": False,
                "indexes": [models.Index(fields=["digest", "arrived"], name="distlock_ticket_queue")],
            },
            unless_vendor=["sqlite"],
        ),
        CreateKeptModel(
            name="LockName",
            fields=[
                ("key", AsciiField(db_column="lock_key", max_length=64, primary_key=True, serialize=False)),
                ("alias", AsciiField(max_length=255)),
                ("name", models.TextField()),
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
            unless_vendor=["sqlite"],
        ),
        migrations.CreateModel(
            name="HeldLock",
            fields=[("key", models.CharField(max_length=255, primary_key=True, serialize=False))],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "permissions": (("break_lock", "Can break held locks"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        CreateKeptModel(
            name="LockEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("alias", AsciiField(max_length=255)),
                ("digest", AsciiField(max_length=32)),
                ("name", models.CharField(max_length=512)),
                ("kind", AsciiField(max_length=16)),
                ("at", models.DateTimeField()),
                ("wait", models.FloatField(null=True)),
                ("hold", models.FloatField(null=True)),
                ("fence", models.BigIntegerField(null=True)),
                ("reason", models.CharField(max_length=255)),
                ("holder", models.CharField(max_length=255)),
            ],
            options={
                "db_table": "django_distlock_event",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["digest", "alias", "at"], name="distlock_event_of_lock"),
                    models.Index(fields=["at"], name="distlock_event_at"),
                ],
            },
        ),
        CreateKeptModel(
            name="IdempotencyRecord",
            fields=[
                ("scope", AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("state", AsciiField(max_length=10, verbose_name="state")),
                ("owner", AsciiField(max_length=32)),
                ("fingerprint", AsciiField(max_length=64)),
                ("principal", models.CharField(max_length=255, verbose_name="principal")),
                ("method", AsciiField(max_length=10, verbose_name="method")),
                ("route", models.CharField(max_length=255, verbose_name="route")),
                ("phases", models.TextField()),
                ("status", models.SmallIntegerField(null=True, verbose_name="status")),
                ("answer", models.BinaryField(null=True)),
                ("claimed_at", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("lives_until", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
                "db_table": "django_distlock_idempotency",
                "permissions": (("release_idempotencyrecord", "Can release stuck idempotency keys"),),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["lives_until"], name="distlock_idempotency_ends"),
                    models.Index(fields=["principal", "lives_until"], name="distlock_idempotency_whose"),
                ],
            },
        ),
        CreateKeptModel(
            name="WebLease",
            fields=[
                ("digest", AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("model", models.CharField(max_length=255)),
                ("name", models.TextField()),
                ("lease", AsciiField(max_length=64)),
                ("principal", AsciiField(max_length=255)),
                ("label", models.CharField(max_length=255)),
                ("fence", models.BigIntegerField()),
                ("writes", models.BigIntegerField()),
                ("since", models.BigIntegerField()),
                ("active_at", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
                ("ends_at", models.BigIntegerField()),
                ("page_left", models.SmallIntegerField()),
                ("previous", AsciiField(max_length=64)),
                ("ended", AsciiField(max_length=16)),
                ("changed_at", models.BigIntegerField()),
                ("changed_by", models.CharField(max_length=255)),
            ],
            options={
                "verbose_name": "edit lock",
                "verbose_name_plural": "edit locks",
                "db_table": "django_distlock_weblease",
                "permissions": (("takeover_editlease", "Can take over what another user is editing"),),
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["expires_at"], name="distlock_weblease_ends"),
                    models.Index(fields=["principal", "expires_at"], name="distlock_weblease_whose"),
                ],
            },
        ),
        CreateKeptModel(
            name="BrowserTicket",
            fields=[
                ("holder", AsciiField(max_length=64, primary_key=True, serialize=False)),
                ("digest", AsciiField(max_length=64)),
                ("lease", AsciiField(max_length=64)),
                ("principal", AsciiField(max_length=255)),
                ("arrived", models.BigIntegerField()),
                ("alive_until", models.BigIntegerField()),
            ],
            options={
                "db_table": "django_distlock_browserticket",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["digest", "arrived"], name="distlock_browserticket_queue"),
                    models.Index(fields=["principal"], name="distlock_browserticket_whose"),
                ],
            },
        ),
        migrations.RunPython(make_site_key, migrations.RunPython.noop, hints={"model_name": "sitekey"}),
    ]
