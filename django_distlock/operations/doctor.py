"""Checks of the servers of the locks, for ``distlock doctor``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_distlock.checks.servers import kept_out
from django_distlock.concurrency import clock
from django_distlock.conf import site_key_setting
from django_distlock.exceptions import BackendUnavailable, DistlockError, LockNotAcquired
from django_distlock.locks.lock import Lock
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import read_row
from django_distlock.records import Finding

from .lookup import with_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.manager.registry import Entry

# The name of the lock that is acquired and released on each alias.
DOCTOR = "django_distlock.doctor"
PATIENCE = 2.0


def diagnose(using: str | None = None) -> list[Finding]:
    """Examine the servers of one alias, or of all, and the site key.

    A server that does not answer is a finding and not an exception. Texts contain neither the site key nor passwords.
    """
    key = list(_site_key())
    keyless = any(finding.level == "error" for finding in key)
    found = key
    for alias in [using] if using is not None else registry.aliases():
        try:
            entry = registry.entry(alias)
        except ImproperlyConfigured as error:
            found.append(Finding("error", str(error), "See `manage.py check --tag distlock`.", alias))
            continue
        found += (replace(finding, alias=alias) for finding in _alias(entry, alias, keyless))
    return found


def _alias(entry: Entry, alias: str, keyless: bool) -> Iterator[Finding]:
    backend = entry.backend
    failed = False
    yield from kept_out(backend)
    if not (keyless and backend.needs_site_key):
        for finding in _acquired(entry, alias):
            failed = failed or finding.level == "error"
            yield finding
    if not backend.needs_site_key:
        yield Finding("info", "Its locks exclude only the threads and tasks of this process.")
    try:
        yield from backend.diagnose()
    except (DistlockError, ImproperlyConfigured) as error:
        if not failed:
            yield Finding("error", with_cause(error))
        return
    except Exception as error:  # an unknown kind of server must not end the report
        yield Finding("warning", f"The server could not be examined: {type(error).__name__}.")


def _acquired(entry: Entry, alias: str) -> Iterator[Finding]:
    """Acquire and release a lock."""
    began = clock.now()
    try:
        Lock(DOCTOR, using=alias, timeout=PATIENCE).acquire().release()
    except LockNotAcquired:
        yield Finding(
            "warning", f"The lock {DOCTOR!r} was busy for {PATIENCE:g} s.", "Is another `distlock doctor` running?"
        )
    except (DistlockError, ImproperlyConfigured) as error:
        yield Finding("error", f"No lock can be acquired: {with_cause(error)}")
    except Exception as error:
        if not callable(entry.config.namespace):
            raise
        yield Finding("warning", f"No lock was acquired: NAMESPACE cannot be asked here ({type(error).__name__}).")
    else:
        yield Finding("info", f"A lock was acquired and released in {(clock.now() - began) * 1000:.0f} ms.")


def _site_key() -> Iterator[Finding]:
    try:
        given = site_key_setting()
    except ImproperlyConfigured as error:
        yield Finding("error", str(error))
        return
    try:
        _, row = read_row()
    except BackendUnavailable as error:
        if given is None:
            yield Finding("error", str(error))
            return
        row = None
    text = f"The site key comes from {'the database' if given is None else 'DISTLOCK_SITE_KEY'}"
    if given is not None and row not in (None, given):
        text += (
            ", and the database has another one: processes with and without the setting would not exclude each other"
        )
    yield Finding("info", f"{text}.")
