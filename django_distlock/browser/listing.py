"""Who holds browser locks: for operators, and for ``distlock prune``.

``held_locks()`` does not list them. Each of its reports is about an alias in ``DISTLOCK``, and ``break_lock()`` gives
what it lists to the backend of that alias; a browser lock belongs to a database and to no alias.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.db import connections, router

from django_distlock.concurrency.text import one_line
from django_distlock.schema import NOW, Pruner

from . import store
from .conf import config

if TYPE_CHECKING:
    from .records import BrowserLease

logger = logging.getLogger("django_distlock.browser")
DAY = 86400.0


def list_browser_locks(name: str | None = None, *, limit: int | None = None) -> list[BrowserLease]:
    """Every browser lock that is held now, the oldest first; or the one of ``name``.

    BackendUnavailable if the database does not answer.
    """
    if name is None:
        return store.held(config().database, limit)
    return [row for row in store.read(config().database, [name]).values() if row.held]


def break_browser_lock(row: BrowserLease, *, reason: str = "") -> bool:
    """End exactly this lease; its page learns of it at its next renewal. Logged with the reason.

    False if it has ended or changed hands. BackendUnavailable while a request under the lock keeps its row.
    """
    ended = store.break_lease(config().database, row.name, row.fence)
    if ended is not None:
        logger.warning(
            "The browser lock %r of %s was broken: %s", row.name, one_line(row.label), one_line(reason or "-")
        )
    return ended is not None


def databases() -> list[str]:
    """The database that has the locks; none if it has not the tables."""
    alias = config().database
    known = alias in connections.settings and connections[alias].vendor in NOW
    return [alias] if known and router.allow_migrate(alias, "django_distlock", model_name="weblease") else []


# A row is of use for nothing but its fence, and a new one begins with a higher fence: a day is for those who look.
pruner = Pruner(databases, lambda database, days: store.sweep(database, min(days, 1.0) * DAY))
