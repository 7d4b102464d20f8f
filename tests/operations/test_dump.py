"""``dumpdata`` works in a project that has the app, and takes no secret along."""

from __future__ import annotations

import io
import json

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from django_distlock.models import SiteKey


@pytest.mark.parametrize("database", ["default", "postgres", "mariadb"])
@pytest.mark.parametrize("everything", [False, True])
def test_what_has_no_table_is_left_out_and_so_is_the_site_key(databases: None, database: str, everything: bool) -> None:
    out = io.StringIO()
    call_command("dumpdata", "django_distlock", database=database, use_base_manager=everything, stdout=out)
    dumped = {entry["model"] for entry in json.loads(out.getvalue())}
    models = apps.get_app_config("django_distlock").get_models()
    assert not dumped & {model._meta.label_lower for model in models if not model._meta.managed}
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT site_key FROM {SiteKey._meta.db_table}")
        (key,) = cursor.fetchone()
    assert key not in out.getvalue()
