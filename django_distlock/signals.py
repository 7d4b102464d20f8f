"""What happens to locks, as Django signals.

The sender is the class of the backend. Every signal has ``name`` (str), ``using`` (the alias) and ``template``: the
name as it is written in a decorator (``"account:{pk}"``), None where the name was made elsewhere. Besides

* ``lock_acquired``: ``wait`` and ``hold`` (seconds), ``fence`` (int or None)
* ``lock_released``: ``hold``, ``fence``
* ``lock_timed_out``: ``wait``
* ``lock_failed``: ``wait``, ``error`` (the exception: deadlock, backend unavailable, cancelled, ...)
* ``lock_lost``: ``hold``, ``fence``, ``reason`` ("expired", "session", "savepoint", "transaction", "stolen",
  "unreachable", ...)
* ``lock_broken``: ``reason``; sent by whoever breaks a lock

A receiver that fails is logged and changes nothing. Re-entries send nothing: the engine is not asked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.locks.lease import Lease
    from django_distlock.manager.hold import Holding

logger = logging.getLogger("django_distlock.signals")

lock_acquired = Signal()
lock_released = Signal()
lock_timed_out = Signal()
lock_failed = Signal()
lock_lost = Signal()
lock_broken = Signal()


def send(signal: Signal, backend: Any, name: str, template: str | None = None, **facts: Any) -> None:
    """Send ``signal`` if anybody listens. Never raises: the lock is held, or gone, whatever its receivers do."""
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender=type(backend), name=name, using=backend.alias, template=template, **facts)
    except Exception:  # an async receiver where an event loop runs: Django cannot wait for it
        logger.exception("Not every receiver of a signal about the lock %r could be called.", name)


def send_held(signal: Signal, holding: Holding, **facts: Any) -> None:
    """Send ``signal`` about a holding, if anybody listens."""
    if not signal.receivers:
        return
    grant = holding.grant
    if grant is not None:
        facts.setdefault("fence", grant.fence)
        # the grant counts from the request, the wait at the engine included, and that of a renewed lease anew
        facts.setdefault("hold", monotonic() - (holding.held_at or grant.acquired_at))
    send(signal, holding.backend, holding.key.name, holding.template, **facts)


def told(flow: Flow[Lease | None], backend: Any, recipe: Any, start: float) -> Flow[Lease | None]:
    """``flow``, and a signal if it ends without a Lease."""
    try:
        lease = yield from flow
    except GeneratorExit:
        raise
    except BaseException as error:
        send(lock_failed, backend, recipe.name, recipe.template, wait=monotonic() - start, error=error)
        raise
    if lease is None:
        send(lock_timed_out, backend, recipe.name, recipe.template, wait=monotonic() - start)
    return lease
