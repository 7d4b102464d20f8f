from __future__ import annotations

from django.db import migrations, models

from django_distlock.data import EnforceFence


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Vault",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("fence", models.BigIntegerField(default=0, editable=False)),
                ("balance", models.IntegerField(default=0)),
            ],
        ),
        EnforceFence("Vault"),
    ]
