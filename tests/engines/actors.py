"""What other processes do in these tests; run by tests.support.processes.Child."""

from __future__ import annotations

import time
from typing import Any

from django_distlock import advisory_lock


def hold(link: Any, using: str, *names: str) -> None:
    """Hold all names until told."""
    leases = [advisory_lock(name, using=using).acquire() for name in names]
    link.say("held")
    link.hear()
    for lease in leases:
        lease.release()
    link.say("released")


def share_and_write(link: Any, using: str, name: str) -> None:
    """Wait for the exclusive lock and say when it came, on the clock that all processes share."""
    link.say("asking")
    with advisory_lock(name, using=using, timeout=30):
        link.say(time.monotonic())
        link.hear()
