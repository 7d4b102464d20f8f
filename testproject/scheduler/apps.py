from __future__ import annotations

from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "testproject.scheduler"
    label = "scheduler"
    default_auto_field = "django.db.models.BigAutoField"
