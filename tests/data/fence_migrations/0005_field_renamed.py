from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0004_changed_again")]
    operations = [migrations.RenameField("safe", "fence", "token")]
