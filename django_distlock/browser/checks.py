"""System checks of browser locks; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.migrations.recorder import MigrationRecorder
from django.urls import get_resolver

from django_distlock.models import BrowserTicket, WebLease
from django_distlock.schema import NOW

from . import conf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.apps import AppConfig

# Imported only by projects that have browser locks.
ADDRESSES, GUARD = "django_distlock.browser.urls", "django_distlock.browser.guard"


def check_browser(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """``DISTLOCK_BROWSER``, the database that has the rows, and the addresses of the script."""
    try:
        alias = conf.config().database
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E080")]
    if alias not in connections.settings:
        return [Error(f"DISTLOCK_BROWSER: DATABASE {alias!r} is not in DATABASES.", id="distlock.E081")]
    return [*_check_database(alias), *_check_addresses()] if _is_used() else []


def check_table(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Have the migrations made the tables? It connects, for ``check --database`` and ``migrate`` only.

    A database without this package's migrations is no fault: an error would stop the ``migrate`` that is about to run.
    """
    try:
        alias = conf.config().database
    except ImproperlyConfigured:
        return []
    if alias not in (databases or ()) or alias not in connections.settings or not _is_used() or _check_database(alias):
        return []
    connection = connections[alias]
    if all(app != "django_distlock" for app, _ in MigrationRecorder(connection).applied_migrations()):
        return []
    with connection.cursor() as cursor:
        there: list[Any] = connection.introspection.table_names(cursor)
    missing = [model._meta.db_table for model in (WebLease, BrowserTicket) if model._meta.db_table not in there]
    return [
        Error(
            f"The table {table} is missing in {alias!r}: no browser lock can be acquired.",
            hint=f"Run `migrate --database {alias}`.",
            id="distlock.E082",
        )
        for table in missing
    ]


def _is_used() -> bool:
    """Has the project the setting, the addresses, or code for browser locks?"""
    try:
        _ = get_resolver().url_patterns
    except Exception:  # Django reports it
        return False
    return conf.is_set() or ADDRESSES in sys.modules or GUARD in sys.modules


def _check_database(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor not in NOW:
        return [
            Warning(
                f"Browser locks need PostgreSQL, MySQL, MariaDB or SQLite, and {alias!r} is {connection.display_name}.",
                hint='Set DISTLOCK_BROWSER["DATABASE"] to another database.',
                id="distlock.W080",
            )
        ]
    if not all(
        router.allow_migrate(alias, "django_distlock", model_name=model._meta.model_name)
        for model in (WebLease, BrowserTicket)
    ):
        return [
            Warning(
                f"A router keeps the tables of browser locks out of the database {alias!r}: none can be acquired.",
                hint='Let them in and run `migrate`, or set DISTLOCK_BROWSER["DATABASE"] to another database.',
                id="distlock.W081",
            )
        ]
    return []


def _check_addresses() -> list[CheckMessage]:
    if ADDRESSES in sys.modules:
        return []
    return [
        Warning(
            "Browser locks are used, and the URLconf lacks the addresses that their script asks.",
            hint='Add path("distlock/", include("django_distlock.browser.urls")).',
            id="distlock.W082",
        )
    ]
