"""Engines that may take their time, for tests of something else than time.

A server has a second to connect and to answer, however short the timeout is. A machine that runs a whole suite has no
processor for that long now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.backends.leasetable import server, sqlite
from django_distlock.backends.postgres import transaction
from django_distlock.backends.redis import server as redis
from django_distlock.backends.redlock import attempt, node
from django_distlock.backends.redlock import backend as redlock
from django_distlock.backends.redlock import round as rounds
from django_distlock.backends.sessions import backend, session
from django_distlock.concurrency import deadline

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 3.0


def give_time(set_attribute: Callable[[object, str, object], object] = setattr) -> None:
    """Let servers have SECONDS instead. With ``monkeypatch.setattr`` until the end of the test."""
    for module in (deadline, redis, attempt, node, redlock, rounds, server, sqlite, backend, session, transaction):
        set_attribute(module, "SILENCE", SECONDS)
