"""Sending the signals: a receiver never costs a caller the lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from django.dispatch import Signal

    from django_distlock.concurrency.flow import Flow

    from .lock_table import Hold

L = TypeVar("L")

logger = logging.getLogger("django_distlock.locks")


def send(signal: Signal, backend: Any, name: str, template: str | None = None, **facts: Any) -> None:
    """Send ``signal`` if anybody listens. Never raises: the lock is held, or gone, whatever its receivers do."""
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender=type(backend), name=name, using=backend.alias, template=template, **facts)
    except Exception:  # an async receiver where an event loop runs: Django cannot wait for it
        logger.exception("Not every receiver of a signal about the lock %r could be called.", name)


def send_held(signal: Signal, hold: Hold, **facts: Any) -> None:
    """Send ``signal`` about a holding, if anybody listens."""
    if not signal.receivers:
        return
    grant = hold.grant
    if grant is not None:
        facts.setdefault("fence", grant.fence)
        # the grant counts from the request, the wait at the engine included, and that of a renewed lease anew
        facts.setdefault("hold", monotonic() - (hold.held_at or grant.acquired_at))
    send(signal, hold.backend, hold.key.name, hold.template, **facts)


def told(flow: Flow[L | None], backend: Any, recipe: Any, start: float) -> Flow[L | None]:
    """``flow``, and a signal if it ends without a lease."""
    try:
        lease = yield from flow
    except GeneratorExit:
        raise
    except BaseException as error:
        send(signals.lock_failed, backend, recipe.name, recipe.template, wait=monotonic() - start, error=error)
        raise
    if lease is None:
        send(signals.lock_timed_out, backend, recipe.name, recipe.template, wait=monotonic() - start)
    return lease
