"""System checks of browser locks; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock.leases.checks import check_database, is_used

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
        if alias not in connections.settings:
            raise ImproperlyConfigured(f"DISTLOCK_BROWSER: DATABASE {alias!r} is not in DATABASES.")
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E080")]
    if not (conf.is_set() or is_used(ADDRESSES, GUARD)):
        return []
    hint = 'Let the table in and run `migrate`, or set DISTLOCK_BROWSER["DATABASE"] to another database.'
    found = check_database(alias, "Browser locks", hint)
    if ADDRESSES not in sys.modules:
        found.append(
            Warning(
                "Browser locks are used, and the URLconf lacks the addresses that their script asks.",
                hint='Add path("distlock/", include("django_distlock.browser.urls")).',
                id="distlock.W082",
            )
        )
    return found
