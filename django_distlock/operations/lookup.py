"""Some of the held locks: those that match, a page of them, or those of one name, also where the engine knows only its
hash.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_distlock.backends.query import LockPage, LockQuery, merged
from django_distlock.exceptions import DistlockError
from django_distlock.keys import validate_name
from django_distlock.manager.introspection import ask, held_locks
from django_distlock.manager.name_log import namebook
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key

if TYPE_CHECKING:
    from django_distlock.locks.lease import Lease
    from django_distlock.records import BackendReport


def find_locks(query: LockQuery, using: str | None = None) -> LockPage:
    """Of the held locks of one alias, or of all, those that ``query`` is about, together in its order.

    Errors are as in :func:`held_locks`. PostgreSQL chooses, sorts and cuts by itself: what is read of it does not grow
    with the number of locks; where several aliases are asked, it grows with ``query.stop``. The other engines tell all
    that they have.
    """
    if using is None and len(every := aliases()) == 1:
        (using,) = every
    answers = ask(query if using is not None else replace(query, start=0), using)
    parts = [found.locks for _, found in answers]
    return LockPage(
        locks=merged(parts, query) if using is None else tuple(parts[0]),
        matching=sum(found.matching for _, found in answers),
        total=sum(found.total for _, found in answers),
        reports=tuple(report for report, _ in answers),
    )


def aliases() -> list[str]:
    """The aliases of ``DISTLOCK``."""
    return registry.aliases()


def show_name(lease: Lease) -> None:
    """Have the name of a lock that will be held for long written at once, in the background."""
    namebook.write_now(lease._hold)


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
