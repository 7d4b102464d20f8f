from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="HeldLock",
            fields=[("key", models.CharField(max_length=255, primary_key=True, serialize=False))],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "permissions": (("break_lock", "Can break held locks"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
