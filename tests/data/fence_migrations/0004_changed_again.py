from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0003_renamed")]
    operations = [migrations.AlterField("safe", "note", models.CharField(max_length=20, default="x"))]
