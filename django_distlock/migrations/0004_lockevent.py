from __future__ import annotations

from django.db import migrations, models

from django_distlock.schema import AsciiField, CreateKeptTable


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0003_lockname")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="LockEvent",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
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
            ]
        ),
        CreateKeptTable("LockEvent"),
    ]
