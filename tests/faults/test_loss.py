"""R6, R17, R18: a lock that was lost is told to its holder, in every way that the holder may ask."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from django.db import connections

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.signals import lock_lost
from tests.conftest import PATIENCE, eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, end_session, holders, session_exists, session_of, waiters
from tests.support.processes import Child
from tests.support.timing import within

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


class Ears:
    """Every way of being told."""

    def __init__(self, lease: Any) -> None:
        self.name = lease.name
        self.callback = threading.Event()
        self.signal = threading.Event()
        self.facts: dict[str, Any] = {}
        lease.on_lost(lambda lost: self.callback.set())
        lock_lost.connect(self._hear)

    def _hear(self, **facts: Any) -> None:
        if facts["name"] == self.name:
            self.facts = facts
            self.signal.set()

    def told(self, since: float) -> float:
        """Seconds until both the callback and the signal had come."""
        assert self.callback.wait(PATIENCE), "on_lost was not called"
        assert self.signal.wait(PATIENCE), "no lock_lost"
        return time.monotonic() - since


@each_engine
def test_r17_all_locks_of_a_lost_session_are_lost(using: str, name: str) -> None:
    """Each holder is told, and the next lock connects anew, without an error."""
    leases = [advisory_lock(f"{name}{number}", using=using).acquire() for number in range(10)]
    ears = [Ears(lease) for lease in leases]
    gone = session_of(leases[0]).server_id
    end_session(using, gone)
    for ear, lease in zip(ears, leases, strict=True):
        ear.told(0)
        assert ear.facts["reason"] == "session"
        assert not lease.held
        assert lease.lost
        for ask in (lease.ensure_held, lease.release):
            with pytest.raises(LockLost, match="was lost"):
                ask()
    with advisory_lock(name, using=using) as second:
        assert session_of(second).server_id != gone
        assert holders(using, name) == [session_of(second).server_id]


@each_engine
def test_r17_a_lease_that_is_asked_looks_at_its_session(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the keepalive thread has looked; at a socket that has just been closed, of which nothing
    of the driver comes out."""
    backend = registry.entry(using).backend
    for attempt in range(5):
        lease = advisory_lock(f"{name}{attempt}", using=using).acquire()
        monkeypatch.setattr(backend, "tick", lambda now: now + 1)
        ended = session_of(lease).server_id
        end_session(using, ended)
        eventually(lambda lease=lease: lease.lost, "the lease does not look")
        with pytest.raises(LockLost):
            lease.release()


@pytest.mark.alone
@each_engine
def test_r18_a_killed_session_is_noticed_within_a_second(using: str, name: str) -> None:
    """R18 allows 7 s; a closed socket is seen by the next look of the keepalive thread."""
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    ended = time.monotonic()
    end_session(using, session_of(lease).server_id)
    within(ears.told(ended), 1.0 + 1)
    with pytest.raises(LockLost):
        lease.release()


@each_engine
def test_r17_an_idle_wait_session_that_died_is_replaced(using: str, name: str) -> None:
    """R6: a wait is not failed by the state of a session that merely lay about."""
    waited: list[Any] = []

    def wait() -> None:
        lease = advisory_lock(name, using=using).acquire(timeout=PATIENCE)
        waited.append(session_of(lease).server_id)
        lease.release()

    for _ in range(2):
        with Child(hold, using, name) as child:
            assert child.hear() == "held"
            thread = threading.Thread(target=wait)
            thread.start()
            eventually(lambda: waiters(using, name), "the waiter did not come")
            child.say()
            thread.join()
        end_session(using, waited[-1])
        eventually(lambda: not session_exists(using, waited[-1]), "the session did not end")
    assert len(set(waited)) == 2


@each_engine
def test_r17_tasks_are_told(using: str, name: str) -> None:
    def end(session: int) -> None:
        try:
            end_session(using, session)
        finally:
            connections.close_all()

    async def work() -> None:
        lease = await advisory_lock(name, using=using).aacquire()
        ears = Ears(lease)
        await asyncio.to_thread(end, session_of(lease).server_id)
        await asyncio.to_thread(ears.told, 0)
        with pytest.raises(LockLost):
            await lease.arelease()

    asyncio.run(work())
