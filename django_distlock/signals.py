"""What happens to locks, as Django signals.

The sender is the class of the backend. Every signal has ``name`` (str) and ``using`` (the alias); besides

* ``lock_acquired``: ``wait`` (seconds), ``fence`` (int or None)
* ``lock_released``: ``hold`` (seconds), ``fence``
* ``lock_timed_out``: ``wait``
* ``lock_lost``: ``hold``, ``fence``, ``reason`` ("expired", "session", "savepoint", "stolen", "unreachable", ...)
* ``lock_broken``: ``reason``; sent by whoever breaks a lock

A receiver that fails is logged by Django and changes nothing. Re-entries send nothing: the engine is not asked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

if TYPE_CHECKING:
    from .holding import Holding

lock_acquired = Signal()
lock_released = Signal()
lock_timed_out = Signal()
lock_lost = Signal()
lock_broken = Signal()


def send(signal: Signal, backend: Any, name: str, **facts: Any) -> None:
    """Send ``signal`` if anybody listens."""
    if signal.receivers:
        signal.send_robust(sender=type(backend), name=name, using=backend.alias, **facts)


def send_held(signal: Signal, holding: Holding, **facts: Any) -> None:
    """Send ``signal`` about a holding, if anybody listens."""
    if not signal.receivers:
        return
    grant = holding.grant
    if grant is not None:
        facts.setdefault("fence", grant.fence)
        facts.setdefault("hold", time.monotonic() - grant.acquired_at)
    send(signal, holding.backend, holding.key.name, **facts)
