"""``dumpdata`` works in a project that has the app, and takes no secret and no answer along."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from django_distlock.models import IdempotencyRecord, LockEvent, SiteKey

DATABASES = pytest.mark.parametrize("database", ["default", "postgres", "mariadb"])
EVERYTHING = pytest.mark.parametrize("everything", [False, True])


def dumped(database: str, everything: bool) -> str:
    out = io.StringIO()
    call_command("dumpdata", "django_distlock", database=database, use_base_manager=everything, stdout=out)
    return out.getvalue()


@DATABASES
@EVERYTHING
def test_what_has_no_table_is_left_out_and_so_is_the_site_key(databases: None, database: str, everything: bool) -> None:
    text = dumped(database, everything)
    found = {entry["model"] for entry in json.loads(text)}
    models = apps.get_app_config("django_distlock").get_models()
    assert not found & {model._meta.label_lower for model in models if not model._meta.managed}
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT site_key FROM {SiteKey._meta.db_table}")
        (key,) = cursor.fetchone()
    assert key not in text


@DATABASES
@EVERYTHING
def test_stored_answers_and_the_history_of_locks_are_left_out(databases: None, database: str, everything: bool) -> None:
    """Who asked for what, and what he got: of no use elsewhere, and none of the business of who reads a fixture."""
    answer = IdempotencyRecord(scope="s", state="completed", body=b"canary", claimed_at=0, expires_at=0, lives_until=0)
    event = LockEvent(alias="a", digest="d", name="canary", kind="lost", at=datetime.now(UTC), reason="", holder="")
    for record in (answer, event):
        record.save(using=database, force_insert=True)
    try:
        assert json.loads(dumped(database, everything)) == []
        assert IdempotencyRecord.rows.using(database).get(pk="s").body is not None
        assert LockEvent.rows.using(database).get(pk=event.pk).name == "canary"
    finally:
        for model in (IdempotencyRecord, LockEvent):
            with connections[database].cursor() as cursor:
                cursor.execute(f"DELETE FROM {model._meta.db_table}")
