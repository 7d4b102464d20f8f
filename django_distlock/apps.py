"""Registers what Django calls, without importing it: most processes never run a check, a migration or `prune`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from .conf import history_days
from .manager import open_transactions  # noqa: F401 - notes the connections that are opened before the first lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.core.checks import CheckMessage

# The system checks, each with its tag and whether it is for `check --deploy` alone. With the tag "distlock" Django 6.1
# would connect without --database, so those that connect have only Django's.
CHECKS = (
    ("checks.settings.check_settings", "distlock", False),
    ("checks.settings.check_isolation", "distlock", False),
    ("checks.routes.check_routes", "distlock", False),
    ("checks.servers.check_routers", "distlock", False),
    ("checks.servers.check_deployment", "distlock", True),
    ("checks.servers.check_sessions", Tags.database, False),
    ("checks.servers.check_fences", Tags.database, False),
)
# Folders that may be deleted, each with its check, and with the name of what `distlock prune` deletes and its pruner.
FEATURES = (
    ("idempotency", "checks.check_idempotency", "idempotency", "storage.pruner"),
    ("editing", "checks.check_editing", "edits", "listing.pruner"),
    ("browser", "checks.check_browser", "browser", "listing.pruner"),
)
DOCS = "See docs: reference/checks.md."


class DistlockConfig(AppConfig):
    name = "django_distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"
    # What `distlock prune` deletes besides names and leases -> its schema.Pruner.
    pruners: Mapping[str, str] = MappingProxyType({"events": "django_distlock.operations.history.pruner"})

    def ready(self) -> None:
        checks = [*CHECKS]
        for folder, check, rows, pruner in FEATURES:
            if find_spec(f"{self.name}.{folder}") is not None:
                checks.append((f"{folder}.{check}", "distlock", False))
                self.pruners = {**self.pruners, rows: f"{self.name}.{folder}.{pruner}"}
        for path, tag, deploy in checks:
            register(partial(_check, f"{self.name}.{path}"), tag, deploy=deploy)
        post_migrate.connect(_reconcile_triggers, sender=self)
        setting_changed.connect(_history_changed)
        with suppress(ImproperlyConfigured):  # reported by a check
            if history_days() is not None:
                _history_changed()


def _check(path: str, **kwargs: Any) -> list[CheckMessage]:
    """Run a check; the hint of each message ends with a link to the documentation of its id."""
    messages: list[CheckMessage] = import_string(path)(**kwargs)
    for message in messages:
        message.hint = f"{message.hint} {DOCS}" if message.hint else DOCS
    return messages


def _reconcile_triggers(**kwargs: Any) -> None:
    from .data.fencing import triggers

    triggers.reconcile(**kwargs)


def _history_changed(*, setting: str = "DISTLOCK_HISTORY_DAYS", **kwargs: Any) -> None:
    """Start or stop recording events."""
    if setting == "DISTLOCK_HISTORY_DAYS":
        from .operations import recorder

        recorder.configure()
