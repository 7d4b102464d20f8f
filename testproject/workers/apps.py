from __future__ import annotations

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    name = "testproject.workers"
    label = "workers"
    default_auto_field = "django.db.models.BigAutoField"
