"""System check of database routers that keep tables of locks out of their databases, so that `migrate` skips them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.utils.module_loading import import_string

from django_distlock.conf import configured, read_alias, site_key_setting
from django_distlock.manager.site_key import KEPT_OUT, migrated
from django_distlock.records import Finding

from .links import linked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig

    from django_distlock.backends.base import Backend

CURE = "Let allow_migrate() of the routers return True or None for the app django_distlock there, and run migrate."


def kept_out(backend: Backend) -> Iterator[Finding]:
    """Report tables that a router keeps out of the backend's database: an error, for names of locks a warning."""
    database = getattr(backend, "database", None)
    if database is None:
        return
    tables = ("lockname",) if backend.keeps_notes else backend.tables
    missing = [each for each in tables if not router.allow_migrate(database, "django_distlock", model_name=each)]
    if missing:
        yield Finding(
            "warning" if backend.keeps_notes else "error",
            f"A router in DATABASE_ROUTERS keeps the tables of {', '.join(missing)} out of the database {database!r}"
            + (": locks of other processes are listed by their hash." if backend.keeps_notes else "."),
            CURE,
        )


@register("distlock")
@linked
def check_routers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report tables of the site key, leases and names that routers keep out of their databases."""
    found: list[CheckMessage] = []
    hashed = False
    try:
        aliases = list(configured())
        keyed = site_key_setting() is not None
    except ImproperlyConfigured:  # reported by check_settings
        return []
    for alias in aliases:
        try:
            config = read_alias(alias)
            backend: Backend = import_string(config.backend)(alias, config.options)
        except Exception:  # noqa: S112 - told by check_settings
            continue
        hashed = hashed or getattr(backend, "needs_site_key", False)
        for finding in kept_out(backend):
            text = f"DISTLOCK[{alias!r}]: {finding.text}"
            if finding.level == "error":
                found.append(Error(text, hint=finding.hint, id="distlock.E069"))
            else:
                found.append(Warning(text, hint=finding.hint, id="distlock.W068"))
    if hashed and not keyed and not migrated():
        hint = f"{CURE} Or set DISTLOCK_SITE_KEY."
        found.append(Error(f"There will be no site key. {KEPT_OUT.strip()}", hint=hint, id="distlock.E068"))
    return found
