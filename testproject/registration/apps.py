from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.apps import apps as present_apps
from django.db.models.signals import post_migrate


class RegistrationConfig(AppConfig):
    name = "testproject.registration"
    label = "registration"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        post_migrate.connect(make_door, sender=self)


def make_door(using: str, apps: Any = present_apps, **kwargs: Any) -> None:
    """The row that registrations lock, if the table is there by now; ``flush`` does not say which models there are."""
    try:
        door = apps.get_model("registration", "Door")
    except LookupError:
        return
    door.objects.using(using).get_or_create(pk=1, defaults={"name": "registration"})
