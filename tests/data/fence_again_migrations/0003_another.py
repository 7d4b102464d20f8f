"""Another model of the same name, with a number called fence that may fall."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0002_deleted")]
    operations = [
        migrations.CreateModel(
            name="Vault",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("fence", models.IntegerField(default=0)),
                ("balance", models.IntegerField(default=0)),
            ],
        ),
    ]
