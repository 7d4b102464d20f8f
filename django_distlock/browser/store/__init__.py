"""The tables ``django_distlock_browserlock``, one row for each name, and ``django_distlock_browserticket``, the queue.

``queue`` has acquire, ``leases`` what holders do, ``upkeep`` what endpoints count and operators need. ``alias`` is that
of the database. No statement waits for the lock of a row, but for :func:`lock_for_update`.
"""

from __future__ import annotations

from .leases import lock_for_update, read, release, renew
from .queue import acquire, leave
from .upkeep import break_lease, counts, heads, held, held_by, names_of, sweep

__all__ = [
    "acquire",
    "break_lease",
    "counts",
    "heads",
    "held",
    "held_by",
    "leave",
    "lock_for_update",
    "names_of",
    "read",
    "release",
    "renew",
    "sweep",
]
