"""System checks of the backends of ``DISTLOCK`` and of their databases, as far as `check_settings` finds them right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.utils.module_loading import import_string

from django_distlock.backends.base import Backend
from django_distlock.conf import configured, read_alias, site_key_setting
from django_distlock.data.fencing.triggers import difference
from django_distlock.exceptions import DistlockError, UnsupportedOperation
from django_distlock.manager.site_key import KEPT_OUT, migrated
from django_distlock.records import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig

    from django_distlock.conf import AliasConfig

CURE = "Let allow_migrate() of the routers return True or None for the app django_distlock there, and run migrate."


def _backends() -> Iterator[tuple[AliasConfig, Backend]]:
    """Each alias whose settings are right, with a backend of no lock. check_settings reports the others."""
    try:
        aliases = list(configured())
    except ImproperlyConfigured:
        return
    for alias in aliases:
        try:
            config = read_alias(alias)
            backend = import_string(config.backend)(alias, config.options)
        except Exception:  # noqa: S112 - reported by check_settings
            continue
        if isinstance(backend, Backend):
            yield config, backend


def kept_out(backend: Backend) -> Iterator[Finding]:
    """Report tables that a router keeps out of the backend's database: an error, for names of locks a warning."""
    database = getattr(backend, "database", None)
    if database is None:
        return
    tables = ("lockname",) if backend.keeps_notes else backend.tables
    absent = [each for each in tables if not router.allow_migrate(database, "django_distlock", model_name=each)]
    if absent:
        yield Finding(
            "warning" if backend.keeps_notes else "error",
            f"A router in DATABASE_ROUTERS keeps the tables of {', '.join(absent)} out of the database {database!r}"
            + (": locks of other processes are listed by their hash." if backend.keeps_notes else "."),
            CURE,
        )


def check_routers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report tables of the site key, leases and names that routers keep out of their databases, so that `migrate`
    skips them."""
    found: list[CheckMessage] = []
    for config, backend in _backends():
        for finding in kept_out(backend):
            text = f"DISTLOCK[{config.alias!r}]: {finding.text}"
            if finding.level == "error":
                found.append(Error(text, hint=finding.hint, id="distlock.E069"))
            else:
                found.append(Warning(text, hint=finding.hint, id="distlock.W068"))
    if any(backend.needs_site_key for _, backend in _backends()) and _keyless() and not migrated():
        hint = f"{CURE} Or set DISTLOCK_SITE_KEY."
        found.append(Error(f"There will be no site key. {KEPT_OUT.strip()}", hint=hint, id="distlock.E068"))
    return found


def _keyless() -> bool:
    """Is the site key that of the database?"""
    try:
        return site_key_setting() is None
    except ImproperlyConfigured:  # reported by check_settings
        return False


def check_deployment(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report a site key that differs between databases, for locks that are outside of them; and aliases whose callers
    wait for ever: requests that wait for a stuck lock use up all workers."""
    found: list[CheckMessage] = []
    for config, backend in _backends():
        where = f"DISTLOCK[{config.alias!r}]"
        if backend.apart_from_databases and _keyless():
            text = (
                f"{where}: the site key is in the database, and these locks are not. Projects with other databases do "
                "not exclude each other there."
            )
            hint = "Set DISTLOCK_SITE_KEY to the same value in all projects that share these locks."
            found.append(Warning(text, hint=hint, id="distlock.W004"))
        if config.timeout is None:
            text = f"{where}: TIMEOUT is None: a request waits for ever for a lock that is stuck."
            hint = "Set seconds here, and give timeout=None where a task may wait for ever."
            found.append(Warning(text, hint=hint, id="distlock.W007"))
    return found


def check_sessions(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report servers whose lock sessions exclude nothing: a Galera node, a pooler that gives one session to several
    clients. Connects, as `check --database` and `migrate` ask for."""
    found: list[CheckMessage] = []
    for _, backend in _backends() if databases else ():
        if getattr(backend, "session_database", None) in (databases or ()):
            session: Any = backend
            try:
                session.open_session(waits=False).close()
            except ImproperlyConfigured as error:
                found.append(Error(str(error), id="distlock.E005"))
            except UnsupportedOperation as error:
                found.append(Warning(str(error), id="distlock.W006"))
            except DistlockError:  # the server does not answer: the settings may be right
                continue
            finally:
                backend.close()
    return found


def check_fences(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report triggers of models with ``enforce_fence`` that are missing."""
    return [
        Warning(
            f"The trigger that keeps the fence of {model._meta.label} from falling is missing in the database "
            f"{alias!r}.",
            hint="An old token can overwrite rows. Run migrate, which creates it.",
            id="distlock.W003",
        )
        for alias in databases or ()
        for model in difference(alias)[0].values()
    ]
