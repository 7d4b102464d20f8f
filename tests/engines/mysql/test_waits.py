"""MySQL and MariaDB: waits in the engine's queue, and KILL QUERY on any statement of a lock session."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import LockTimeout, advisory_lock
from django_distlock.backends.mysql import session
from django_distlock.manager.registry import registry
from tests.engines.actors import held_elsewhere
from tests.faults.server import cancel_statement, holders, session_exists, session_of, waiters

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def test_a_wait_in_vain_costs_no_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL too, whose GET_LOCK knows whole seconds only: connecting costs it more than a wait."""
    monkeypatch.setattr(session, "GRACE", 10.0)  # a server that is late for want of a processor costs one, by right
    backend = registry.entry("mysql").backend
    with held_elsewhere("mysql", name):
        seen = []
        for timeout in (2.0, 0.3, 0.05, 0.73):
            assert advisory_lock(name, using="mysql").try_acquire(timeout=timeout) is None
            seen.append({each.server_id for each in backend.sessions.all()})
        assert len(seen[0]) == 2, "one to try on, one to wait on"
        assert seen == [seen[0]] * 4


def flood(session: Callable[[], int | None], ended: threading.Event) -> threading.Thread:
    """KILL QUERY as fast as the server takes it."""

    def run() -> None:
        while not ended.is_set():
            found = session()
            if found is not None and session_exists("mysql", found):
                for _ in range(20):
                    cancel_statement("mysql", found)
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_r7_kill_query_on_what_follows_an_interrupted_wait(name: str) -> None:
    """After NULL the name is given back, in case it was granted after all; that statement can be hit as well."""
    ended = threading.Event()
    with held_elsewhere("mysql", name):

        def waiter() -> int | None:
            found = waiters("mysql", name)
            return found[0] if found else None

        thread = flood(waiter, ended)
        try:
            with pytest.raises(LockTimeout):
                advisory_lock(name, using="mysql").acquire(timeout=2)
        finally:
            ended.set()
            thread.join()
    assert not holders("mysql", name)


def test_r6_kill_query_on_a_release_costs_no_other_lock(name: str) -> None:
    ended = threading.Event()
    with advisory_lock(name + "-kept", using="mysql") as kept:
        session: Any = session_of(kept)
        thread = flood(lambda: session.server_id, ended)
        try:
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                with advisory_lock(name, using="mysql"):
                    kept.ensure_held()
        finally:
            ended.set()
            thread.join()
        assert not kept.lost
        assert holders("mysql", name + "-kept") == [session.server_id]
        assert not holders("mysql", name)
