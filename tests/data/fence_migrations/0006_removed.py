from __future__ import annotations

from django.db import migrations

from django_distlock.data import RelaxFence


class Migration(migrations.Migration):
    dependencies = [("dataapp", "0005_field_renamed")]
    operations = [RelaxFence("Safe", "token"), migrations.RemoveField("safe", "token")]
