from __future__ import annotations

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    dependencies: ClassVar = [("dataapp", "0001_table")]
    operations: ClassVar = [migrations.RunSQL("UPDATE counted SET n = n + 1")]
