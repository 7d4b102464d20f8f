"""R6, R17, R18: a lock that was lost is told to its holder, in every way that the holder may ask."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.signals import lock_lost
from tests.conftest import eventually
from tests.faults.server import SESSION_LOCKS, end_session, holders, session_exists, session_of, waiters
from tests.support.processes import Child
from tests.support.timing import within

LIMIT = 7.0  # R18: seconds for database sessions

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


class Ears:
    """Every way of being told."""

    def __init__(self, lease: Any) -> None:
        self.callback = threading.Event()
        self.signal = threading.Event()
        self.facts: dict[str, Any] = {}
        lease.on_lost(lambda lost: self.callback.set())
        lock_lost.connect(self._hear)

    def _hear(self, **facts: Any) -> None:
        self.facts = facts
        self.signal.set()

    def told(self, since: float) -> float:
        """Seconds until both the callback and the signal had come."""
        assert self.callback.wait(LIMIT), "on_lost was not called within 7 s"
        assert self.signal.wait(LIMIT), "no lock_lost within 7 s"
        return time.monotonic() - since


@each_engine
def test_r17_the_first_lock_of_a_process_is_watched(using: str, name: str) -> None:
    """R17: the keepalive thread starts with the lock and must not end before the session is open."""
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    ended = time.monotonic()
    end_session(using, session_of(lease).server_id)
    within(ears.told(ended), LIMIT)
    assert ears.facts["name"] == name
    assert ears.facts["reason"] == "session"
    with pytest.raises(LockLost, match="was lost"):
        lease.release()


@each_engine
def test_r17_asking_a_lease_whose_session_was_killed_gives_an_answer(using: str, name: str) -> None:
    """R6, R17: ``lost`` looks at a socket that has just been closed; nothing of the driver comes out of it."""
    for attempt in range(20):
        lease = advisory_lock(f"{name}{attempt}", using=using).acquire()
        end_session(using, session_of(lease).server_id)
        eventually(lambda lease=lease: lease.lost, "lost is not seen", patience=LIMIT)
        assert not lease.held
        with pytest.raises(LockLost):
            lease.ensure_held()
        with pytest.raises(LockLost):
            lease.release()


@each_engine
def test_r17_a_lease_that_is_asked_looks_at_its_session(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the keepalive thread has looked."""
    backend = registry.entry(using).backend
    lease = advisory_lock(name, using=using).acquire()
    monkeypatch.setattr(backend, "tick", lambda now: now + 1)
    ended = session_of(lease).server_id
    end_session(using, ended)
    eventually(lambda: not session_exists(using, ended), "the session goes on")
    # the server has sent its farewell, which may be on its way for a moment
    eventually(lambda: lease.lost, "the lease does not look")
    with pytest.raises(LockLost):
        lease.release()


@each_engine
def test_r18_a_killed_session_is_noticed_within_a_second(using: str, name: str) -> None:
    """R18 allows 7 s; a closed socket is seen by the next look of the keepalive thread."""
    slowest = 0.0
    for attempt in range(3):
        lease = advisory_lock(f"{name}{attempt}", using=using).acquire()
        ears = Ears(lease)
        ended = time.monotonic()
        end_session(using, session_of(lease).server_id)
        slowest = max(slowest, ears.told(ended))
        with pytest.raises(LockLost):
            lease.release()
    within(slowest, 1.0, what="noticing")


@each_engine
def test_r17_all_locks_of_a_lost_session_are_lost(using: str, name: str) -> None:
    leases = [advisory_lock(f"{name}{number}", using=using).acquire() for number in range(10)]
    ears = [Ears(lease) for lease in leases]
    end_session(using, session_of(leases[0]).server_id)
    for ear in ears:
        assert ear.callback.wait(LIMIT)
    for lease in leases:
        with pytest.raises(LockLost):
            lease.release()


@each_engine
def test_r17_the_next_lock_gets_a_new_session(using: str, name: str) -> None:
    """The loss of one session is not the end of locking: the next acquire connects anew, without an error."""
    lease = advisory_lock(name, using=using).acquire()
    gone = session_of(lease).server_id
    end_session(using, gone)
    with advisory_lock(name + "2", using=using) as second:
        assert session_of(second).server_id != gone
        assert holders(using, name + "2") == [session_of(second).server_id]
    with pytest.raises(LockLost):
        lease.release()


def hold(link: Any, using: str, name: str) -> None:
    """In a child: hold ``name`` until told."""
    with advisory_lock(name, using=using):
        link.say("held")
        link.hear()


@pytest.mark.tier2
@each_engine
def test_r17_an_idle_wait_session_that_died_is_replaced(using: str, name: str) -> None:
    """R6: a wait is not failed by the state of a session that merely lay about."""
    waited: list[Any] = []

    def wait() -> None:
        lease = advisory_lock(name, using=using).acquire(timeout=10)
        waited.append(session_of(lease).server_id)
        lease.release()

    for _ in range(2):
        with Child(hold, using, name) as child:
            assert child.hear() == "held"
            thread = threading.Thread(target=wait)
            thread.start()
            eventually(lambda: waiters(using, name), "the waiter did not come")
            child.say()
            thread.join(10)
        end_session(using, waited[-1])
        eventually(lambda: not session_exists(using, waited[-1]), "the session did not end")
    assert len(set(waited)) == 2


@each_engine
def test_r17_a_release_after_the_loss_is_quiet_under_another_exception(using: str, name: str) -> None:
    """R16, R14: what the body raised is what comes out."""

    def body() -> None:
        with advisory_lock(name, using=using) as lease:
            end_session(using, session_of(lease).server_id)
            eventually(lambda: lease.lost, "lost is not seen")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


@each_engine
def test_r17_tasks_are_told(using: str, name: str) -> None:
    async def work() -> None:
        lease = await advisory_lock(name, using=using).aacquire()
        ears = Ears(lease)
        session = session_of(lease).server_id
        ended = time.monotonic()
        await asyncio.to_thread(end_in_thread, using, session)
        within(await asyncio.to_thread(ears.told, ended), 1.0)
        with pytest.raises(LockLost):
            await lease.arelease()

    asyncio.run(work())


def end_in_thread(using: str, session: int) -> None:
    from django.db import connections

    try:
        end_session(using, session)
    finally:
        connections.close_all()
