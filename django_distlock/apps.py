from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DistlockConfig(AppConfig):
    name = "django_distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # importing a module of checks registers them
        from .checks import routers, routes, servers, settings  # noqa: F401
        from .data.fencing import triggers
        from .operations import recorder

        if find_spec("django_distlock.idempotency") is not None:  # a folder that may be deleted
            from .idempotency import checks  # noqa: F401
        if find_spec("django_distlock.editing") is not None:
            from .editing import checks as editing_checks  # noqa: F401
            from .editing.http import template_checks  # noqa: F401

        post_migrate.connect(triggers.restore, sender=self)
        recorder.configure()
