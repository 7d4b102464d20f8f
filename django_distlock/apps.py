from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DistlockConfig(AppConfig):
    name = "django_distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # registers the system checks
        from django_distlock.data.fencing import triggers

        from .checks import routers, routes, servers, settings  # noqa: F401
        from .operations import history

        # a feature beside the core: the rest does not need it
        if find_spec("django_distlock.idempotency") is not None:
            import_module("django_distlock.idempotency.checks")

        post_migrate.connect(triggers.restore, sender=self)
        history.configure()
