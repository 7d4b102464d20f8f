from __future__ import annotations

from django.db import migrations, models

from django_distlock.schema import AddKeptIndex


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0006_ticket_holder")]

    operations = [
        AddKeptIndex(
            "IdempotencyRecord",
            models.Index(fields=["principal", "lives_until"], name="distlock_idempotency_whose"),
        ),
    ]
