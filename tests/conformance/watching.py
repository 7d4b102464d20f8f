"""Looking at queues and taking locks away: what a test needs to know instead of sleeping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock import held_locks
from django_distlock.holding import State
from django_distlock.holdings import holdings
from django_distlock.registry import registry
from django_distlock.sitekey import site_key

if TYPE_CHECKING:
    from tests.matrix import Entry


def waiting_here(name: str) -> int:
    """How many contexts of this process wait for their turn to ask the engine."""
    return sum(holding.state is State.WAITING and holding.key.name == name for holding in holdings.everything())


def asking_here(name: str) -> int:
    """How many contexts of this process ask the engine now."""
    return sum(holding.state is State.CLAIMING and holding.key.name == name for holding in holdings.everything())


def waiting_at_the_engine(using: str, name: str) -> int:
    """How many waiters the engine knows of, of any process."""
    site_key.load()
    registry.entry(using).key(name)  # so that the name of the hash is known
    (report,) = held_locks(using)
    assert report.error is None, report
    return sum(info.waiters or 0 for info in report.locks if info.name == name)


def take_away(entry: Entry, name: str) -> None:
    """Have an operator end the holder's hold, without a word to it."""
    backend = registry.entry(entry.using).backend
    if backend.supports_break:
        infos = [info for info in backend.inspect() if info.name == name]
        assert [backend.break_lock(info) for info in infos] == [True] * len(infos) != []
        return
    sessions: list[Any] = [session for session in backend.sessions.all() if session.held]  # type: ignore[attr-defined]
    assert sessions
    statement = "SELECT pg_terminate_backend(%d)" if entry.using == "postgres" else "KILL %d"
    with connections[entry.database or ""].cursor() as cursor:
        for session in sessions:
            cursor.execute(statement % session.server_id)
