from __future__ import annotations

from django.db import migrations

from django_distlock.schema import AddKeptField, AsciiField


class Migration(migrations.Migration):
    dependencies = [("django_distlock", "0005_idempotency")]

    operations = [
        # Null, so that processes of the version before go on while they are replaced.
        AddKeptField("LeaseTicket", "holder", AsciiField(max_length=255, null=True), unless_vendor=["sqlite"]),
    ]
