from __future__ import annotations

from django.db import migrations, models

import django_distlock.schema
from django_distlock.schema import CreateKeptTable


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0004_lockevent")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="IdempotencyRecord",
                    fields=[
                        ("scope", django_distlock.schema.AsciiField(max_length=64, primary_key=True, serialize=False)),
                        ("state", django_distlock.schema.AsciiField(max_length=10, verbose_name="state")),
                        ("owner", django_distlock.schema.AsciiField(max_length=32)),
                        ("fingerprint", django_distlock.schema.AsciiField(max_length=64)),
                        ("principal", models.CharField(max_length=255, verbose_name="principal")),
                        ("method", django_distlock.schema.AsciiField(max_length=10, verbose_name="method")),
                        ("route", models.CharField(max_length=255, verbose_name="route")),
                        ("phases", models.TextField()),
                        ("status", models.SmallIntegerField(null=True, verbose_name="status")),
                        ("facts", models.TextField(null=True)),
                        ("body", models.BinaryField(null=True)),
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
                        "indexes": [models.Index(fields=["lives_until"], name="distlock_idempotency_ends")],
                    },
                ),
            ]
        ),
        CreateKeptTable("IdempotencyRecord"),
    ]
