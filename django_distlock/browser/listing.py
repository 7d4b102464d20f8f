"""Who holds browser locks: for operators, and for ``distlock prune``.

``held_locks()`` does not list them. Each of its reports is about an alias in ``DISTLOCK``, and ``break_lock()`` gives
what it lists to the backend of that alias; a browser lock belongs to a database and to no alias.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.concurrency.text import one_line
from django_distlock.leases import rows, upkeep
from django_distlock.leases.checks import has_table
from django_distlock.leases.records import named
from django_distlock.operations.commands.leases import LeaseCommand
from django_distlock.operations.leases import Held, Leases
from django_distlock.schema import Pruner

from .conf import config

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("django_distlock.browser")
DAY = 86400.0


class BrowserLeases(Leases):
    """Browser locks, for the subcommand and the admin's page of held locks."""

    kind = "browser"
    help = "List the browser locks that are held, and end one with --break."
    nothing = "No browser lock is held."
    arguments = ("name",)

    def databases(self) -> list[str]:
        alias = config().database
        return [alias] if alias in connections.settings and has_table(alias) else []

    def held(self, database: str, names: Sequence[str] = (), limit: int | None = None) -> list[Held]:
        if names:
            found = list(rows.read(named(database, name) for name in names).values())
        else:
            found = upkeep.held(database, of_objects=False, limit=limit)
        return [Held(named(database, row.name), row) for row in found if row.held]

    def end(self, held: Held, reason: str) -> bool:
        row = held.row
        ended = upkeep.break_lease(held.resource, row.fence)
        if ended is not None:
            message = "The browser lock %r of %s was broken: %s"
            logger.warning(message, row.name, one_line(row.label), one_line(reason or "-"))
        return ended is not None

    def as_data(self, held: Held) -> dict[str, Any]:
        """See docs/browser/index.md."""
        return {"name": held.row.name, "held_by": held.row.label}


browser_leases = BrowserLeases()
# A row is of use for nothing but its fence, and a new one begins with a higher fence: a day is for those who look.
pruner = Pruner(
    browser_leases.databases, lambda database, days: upkeep.sweep(database, min(days, 1.0) * DAY, of_objects=False)
)


class BrowserLocks(LeaseCommand):
    help = BrowserLeases.help
    leases = browser_leases
