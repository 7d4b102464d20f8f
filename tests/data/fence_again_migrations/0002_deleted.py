from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0001_vault")]
    operations = [migrations.DeleteModel("Vault")]
