from __future__ import annotations

from django.apps import AppConfig


class RegistrationConfig(AppConfig):
    name = "testproject.registration"
    label = "registration"
    default_auto_field = "django.db.models.BigAutoField"
