from __future__ import annotations

from django.apps import AppConfig


class BoardConfig(AppConfig):
    name = "testproject.board"
    label = "board"
    default_auto_field = "django.db.models.BigAutoField"
