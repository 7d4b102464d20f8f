"""The held locks of one name, also where the engine knows only its hash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from .exceptions import DistlockError
from .introspection import held_locks
from .names import validate_name
from .registry import registry
from .sitekey import site_key

if TYPE_CHECKING:
    from .records import BackendReport


def held_by_name(name: str, using: str | None = None) -> list[BackendReport]:
    """As :func:`held_locks`, with the locks of that name only. Those on tables and rows are none of them."""
    validate_name(name)
    found = []
    for report in held_locks(using):
        keys = _keys(name, report.alias) if report.error is None else ()
        locks = (
            replace(info, name=name) if info.key in keys else info
            for info in report.locks
            if (info.name == name or info.key in keys) and "kind" not in info.details
        )
        found.append(replace(report, locks=tuple(locks)))
    return found


def _keys(name: str, alias: str) -> tuple[str, ...]:
    """What an engine may call the name; nothing if there is no site key to tell."""
    try:
        entry = registry.entry(alias)
        if not entry.ready:
            site_key.load()
        key = entry.key(name)
    except (DistlockError, ImproperlyConfigured):
        return ()
    return (str(key.number), key.text, key.path)
