from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0002_changes")]
    operations = [
        migrations.RenameModel("Vault", "Safe"),
        migrations.AlterModelTable("Safe", "dataapp O'Hara Safe"),
    ]
