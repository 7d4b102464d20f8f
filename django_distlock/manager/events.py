"""Sends the signals. An error of a receiver never reaches the caller of a lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock

if TYPE_CHECKING:
    from django.dispatch import Signal

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.locks")


def send(
    signal: Signal, backend: Any, name: str, template: str | None = None, namespace: str = "", **facts: Any
) -> None:
    """Send ``signal`` if it has receivers. Never raises: an error of a receiver must not change the lock."""
    if not signal.receivers:
        return
    try:
        facts |= {"name": name, "namespace": namespace, "using": backend.alias, "template": template}
        signal.send_robust(sender=type(backend), **facts)
    except Exception:  # an async receiver where an event loop runs: Django cannot wait for it
        logger.exception("Not every receiver of a signal about the lock %r could be called.", name)


def send_held(signal: Signal, hold: Hold, **facts: Any) -> None:
    """Send ``signal`` about a hold, if it has receivers."""
    if not signal.receivers:
        return
    grant = hold.grant
    if grant is not None:
        facts.setdefault("fence", grant.fence)
        # not the grant's time: that counts from the request, and from the last renewal
        facts.setdefault("hold", clock.now() - (hold.held_at or grant.acquired_at))
    send(signal, hold.backend, hold.key.name, hold.template, hold.key.namespace, **facts)
