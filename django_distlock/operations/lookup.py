"""What the commands and the admin need of the inside: finding held locks by name, and errors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from django_distlock.keys import validate_name
from django_distlock.manager.introspection import held_locks
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key

if TYPE_CHECKING:
    from django_distlock.records import BackendReport


def held_by_name(name: str, using: str | None = None) -> list[BackendReport]:
    """As :func:`held_locks`, with the locks of that name only, and without those on tables and rows.

    The name is one in the code, in the namespace of this process; if that is not held, one with its namespace as lists
    show it.
    """
    validate_name(name)
    found = []
    for report in held_locks(using):
        key, listed = None, name
        if report.error is None:
            with suppress(Exception):  # names have no keys without a site key, or if the namespace is not known here
                key, listed = listed_as(name, report.alias)
        named = [info for info in report.locks if "kind" not in info.details]
        locks = [
            replace(info, name=listed) if info.key == key else info
            for info in named
            if info.name == listed or info.key == key
        ]
        if not locks and ":" in name:  # with its namespace, as lists show it
            locks = [info for info in named if info.name == name]
        found.append(replace(report, locks=tuple(locks)))
    return found


def listed_as(name: str, alias: str) -> tuple[str, str]:
    """The key and the name under which :func:`held_locks` lists a lock. DistlockError if there is no site key."""
    entry = registry.entry(alias)
    if not entry.ready:
        site_key.load()
    key = entry.key(name)
    return entry.backend.listed_as(key), key.full_name


def with_cause(error: BaseException) -> str:
    """The message of an error, and the first line of that of its cause."""
    cause = str(error.__cause__ or "").strip().splitlines()
    return f"{error} ({cause[0]})" if cause and cause[0] not in str(error) else str(error)
