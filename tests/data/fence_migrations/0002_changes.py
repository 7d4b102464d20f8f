from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0001_vault")]
    operations = [
        migrations.AlterField("vault", "balance", models.BigIntegerField(default=0)),
        migrations.AddField("vault", "note", models.CharField(max_length=10, default="x")),
    ]
