"""What the system checks of edit locks and of browser locks share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from django.core.checks import Warning
from django.db import connections, router
from django.urls import get_resolver

from django_distlock.schema import NOW

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


def has_table(alias: str) -> bool:
    """Is the database of a known kind, and does no router keep the table out of it?"""
    return connections[alias].vendor in NOW and router.allow_migrate(alias, "django_distlock", model_name="weblease")


def is_used(*modules: str) -> bool:
    """Has the project imported one of the modules, at the latest with its addresses?"""
    try:
        _ = get_resolver().url_patterns
    except Exception:  # Django reports it
        return False
    return any(module in sys.modules for module in modules)


def check_database(alias: str, what: str, hint: str) -> list[CheckMessage]:
    """``what`` is locked there, for example "Browser locks"."""
    if has_table(alias):
        return []
    connection = connections[alias]
    reason = (
        f"a router keeps the table of leases out of {alias!r}"
        if connection.vendor in NOW
        else f"{alias!r} is {connection.display_name}, and they need PostgreSQL, MySQL, MariaDB or SQLite"
    )
    return [Warning(f"{what} do not work in the database {alias!r}: {reason}.", hint=hint, id="distlock.W071")]
