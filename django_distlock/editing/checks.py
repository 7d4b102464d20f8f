"""System checks of edit locks; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from django_distlock.leases.checks import check_database, is_used

from . import conf
from .listing import written_databases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.apps import AppConfig

# Imported by what locks forms, and by admins that do.
SAVING, ADMIN = "django_distlock.editing.saving", "django_distlock.editing.admin.options"


def check_editing(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """``DISTLOCK_EDITING``, the options of admins, and the databases that hold the rows."""
    try:
        conf.config()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E070")]
    found = _check_admins()
    if conf.is_set() or is_used(SAVING):
        hint = 'Let the table in and run `migrate`, or set DISTLOCK_EDITING["MODE"] = "off".'
        found += [each for alias in written_databases() for each in check_database(alias, "Edit locks", hint)]
    return found


def _check_admins() -> list[CheckMessage]:
    """The options of each admin; those of views are refused when the addresses are loaded."""
    options = sys.modules.get(ADMIN)
    if options is None:
        return []
    from django.contrib.admin.sites import all_sites

    found: list[CheckMessage] = []
    for admin in (admin for site in all_sites for admin in site._registry.values()):
        try:
            conf.require_own(getattr(admin, "edit_lock", {}) if isinstance(admin, options.EditLockAdmin) else {})
        except ImproperlyConfigured as error:
            found.append(Error(f"edit_lock: {error}", obj=type(admin), id="distlock.E072"))
    return found
