"""KILL QUERY, or a limit on statements, may hit any statement of a lock session: not only the one that waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import LockTimeout, advisory_lock
from django_distlock.manager.registry import registry
from tests.engines.actors import hold
from tests.faults.server import cancel_statement, holders, session_exists, session_of, waiters
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("databases")


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


def test_kill_query_on_what_follows_an_interrupted_wait(name: str) -> None:
    """After NULL the name is given back, in case it was granted after all; that statement can be hit as well."""
    ended = threading.Event()
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        assert advisory_lock(name, using="mysql").try_acquire(timeout=0.5) is None

        def waiter() -> int | None:
            found = waiters("mysql", name)
            return found[0] if found else None

        thread = flood(waiter, ended)
        try:
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                advisory_lock(name, using="mysql").acquire(timeout=1.0)
            within(time.monotonic() - began, 1.1, least=1.0)
        finally:
            ended.set()
            thread.join()
        child.say()
        assert child.hear() == "released"


def test_kill_query_on_a_release_costs_no_other_lock(name: str) -> None:
    ended = threading.Event()
    with advisory_lock(name + "-kept", using="mysql") as kept:
        session: Any = session_of(kept)
        thread = flood(lambda: session.server_id, ended)
        try:
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                with advisory_lock(name, using="mysql"):
                    assert registry.entry("mysql").backend.verify(kept._grant)
        finally:
            ended.set()
            thread.join()
        assert not kept.lost
        assert holders("mysql", name + "-kept") == [session.server_id]
        assert not holders("mysql", name)
