"""System checks of edit locks; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.urls import get_resolver

from django_distlock.schema import NOW

from . import conf
from .listing import written_databases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.apps import AppConfig


def check_editing(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """``DISTLOCK_EDITING``, the options of admins, and the databases that hold the rows."""
    try:
        config = conf.config()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E070")]
    found = _check_admins()
    if config.database is not None:
        return [*found, *_check_database(config.database)]
    return [*found, *(message for alias in written_databases() for message in _check_table(alias) if _is_used())]


def _check_admins() -> list[CheckMessage]:
    """The options of each admin; those of views are refused when the addresses are loaded."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.sites import all_sites

    from .admin.options import EditLockAdmin

    found: list[CheckMessage] = []
    for admin in (admin for site in all_sites for admin in site._registry.values()):
        if not issubclass(type(admin), EditLockAdmin):
            continue
        try:
            conf.require_own(getattr(admin, "edit_lock", {}))
        except ImproperlyConfigured as error:
            found.append(Error(f"edit_lock: {error}", obj=type(admin), id="distlock.E072"))
    return found


def _is_used() -> bool:
    """Has the project the addresses of edit locks, or the setting?"""
    try:
        _ = get_resolver().url_patterns
    except Exception:  # Django reports it
        return False
    return "django_distlock.editing.urls" in sys.modules or conf.is_set()


def _check_database(alias: str) -> list[CheckMessage]:
    if alias not in connections.settings:
        return [Error(f"DISTLOCK_EDITING: DATABASE {alias!r} is not in DATABASES.", id="distlock.E071")]
    found = _check_table(alias)
    if others := [other for other in written_databases() if other != alias]:
        found.append(
            Warning(
                f"DISTLOCK_EDITING keeps the edit locks in {alias!r}, and models are written to {', '.join(others)}: "
                "a save and its lock are then not in one transaction.",
                hint="Remove DATABASE: each object then has its lock in its own database. With it, a crash between the "
                "two commits leaves a save that only the version of the fields tells of.",
                id="distlock.W070",
            )
        )
    return found


def _check_table(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor not in NOW:
        return [
            Warning(
                f"Edit locks need PostgreSQL, MySQL, MariaDB or SQLite, and {alias!r} is {connection.display_name}.",
                hint='Set DISTLOCK_EDITING["MODE"] = "off" for its models, or DATABASE to another database.',
                id="distlock.W071",
            )
        ]
    if not router.allow_migrate(alias, "django_distlock", model_name="weblease"):
        return [
            Warning(
                f"A router keeps the table of edit locks out of the database {alias!r}: its objects cannot be locked.",
                hint="Let it in, and run `migrate`.",
                id="distlock.W072",
            )
        ]
    return []
