"""The table ``django_distlock_editlease``: one row for each object, in the database of the object.

``rows`` has the verbs of holders, ``saves`` what a save does in its transaction, ``upkeep`` what operators need.
"""

from __future__ import annotations

from .rows import adopt, alias_for, claim, count_write, read, release, renew, takeover
from .saves import lock, wrote
from .upkeep import break_lease, held, held_by, sweep

__all__ = [
    "adopt",
    "alias_for",
    "break_lease",
    "claim",
    "count_write",
    "held",
    "held_by",
    "lock",
    "read",
    "release",
    "renew",
    "sweep",
    "takeover",
    "wrote",
]
