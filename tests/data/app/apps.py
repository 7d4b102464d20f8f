from __future__ import annotations

from django.apps import AppConfig


class DataAppConfig(AppConfig):
    name = "tests.data.app"
    label = "dataapp"
    default_auto_field = "django.db.models.BigAutoField"
