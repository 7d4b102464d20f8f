"""R7: the reply of every single statement of an acquire and of a release is lost once: afterwards nothing is held, or
we know that we hold.

The connection is either cut at our end or falls silent; the server does not notice either, and did what it was told.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, DistlockError, LockLost, LockNotAcquired, advisory_lock, held_locks
from django_distlock.backends.leasetable import backend as leasetable
from django_distlock.backends.redis import backend as redis
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.faults.server import SESSION_LOCKS, holders, session_of, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
each_lease = pytest.mark.parametrize("using", ["redis", "leasetable_postgres", "leasetable_mariadb"])
# a lease of a task lives on after the task and its loop
WAYS = [
    pytest.param({"cut": True}, False, id="cut"),
    pytest.param({"cut": False}, True, id="silent-task", marks=pytest.mark.tier2),
]
each_way = pytest.mark.parametrize(("lost", "in_task"), WAYS)
TIMEOUT = 0.5
MOST_REQUESTS = 40


def known_or_free(proxy: Proxy, using: str, name: str, in_task: bool) -> bool:
    """With a lease we hold, and nobody else does: True. Without one nobody does once the server knows that we are
    gone."""
    lock, lease = advisory_lock(name, using=using), None
    with suppress(BackendUnavailable, LockNotAcquired):
        lease = asyncio.run(lock.aacquire(timeout=TIMEOUT)) if in_task else lock.acquire(timeout=TIMEOUT)
    freed(proxy, using, name, lease)
    return lease is not None


def freed(proxy: Proxy, using: str, name: str, lease: Any) -> None:
    if lease is not None:
        assert holders(using, name) == [session_of(lease).server_id]
        proxy.heal()
        lease.release()
    proxy.heal()
    proxy.cut()
    eventually(lambda: not holders(using, name), "held, and nobody knows")


def connected(using: str, proxied: Proxied) -> Proxy:
    """Everything is prepared: the next request is that of the lock."""
    proxy = proxied(using)
    connect(using)
    connect(using)
    return proxy


@pytest.mark.tier2
@each_way
@each_engine
def test_r7_each_reply_of_a_first_acquire(using: str, lost: Any, in_task: bool, name: str, proxied: Proxied) -> None:
    """From the greeting of the server on: connecting, preparing, locking."""
    proxy = proxied(using)
    for number in range(1, MOST_REQUESTS):
        registry.close()
        proxy.swallow(number, **lost)
        before = proxy.requests
        granted = known_or_free(proxy, using, f"{name}{number}", in_task)
        if granted and proxy.requests - before < number:  # there was no such request any more
            assert number > 4
            return
    raise AssertionError(f"an acquire of {MOST_REQUESTS} requests")


@pytest.mark.parametrize(("lost", "in_task"), [*WAYS, pytest.param({"passing": 7}, False, id="broken off")])
@each_engine
def test_r7_the_reply_of_a_later_acquire(using: str, lost: Any, in_task: bool, name: str, proxied: Proxied) -> None:
    """On a session that holds another lock, which is lost with it. "broken off": only the first bytes arrive."""
    proxy = connected(using, proxied)
    other = advisory_lock(name + "-other", using=using).acquire()
    proxy.swallow(1, **lost)
    known_or_free(proxy, using, name, in_task)
    eventually(lambda: other.lost, "the loss of the session is not told")
    with pytest.raises(LockLost):
        other.release()
    advisory_lock(name, using=using).acquire(timeout=20).release()


def hold_each(link: Any, using: str, *names: str) -> None:
    """In a child: hold all names, and release each one when told."""
    leases = {name: advisory_lock(name, using=using).acquire() for name in names}
    link.say("held")
    for _ in names:
        leases[link.hear()].release()
        link.say("released")


def wait(using: str, name: str) -> Any:
    try:
        return advisory_lock(name, using=using).try_acquire(timeout=1)
    except DistlockError:
        return None
    finally:
        connections.close_all()


@pytest.mark.tier2
@pytest.mark.parametrize(("using", "cut"), [("postgres", False), ("mysql", True)])
def test_r7_each_reply_of_a_wait(using: str, cut: bool, name: str, proxied: Proxied) -> None:
    """The lock becomes free while we wait; the server grants it to us, and we do not hear of it."""
    names = [f"{name}{number}" for number in range(1, 4)]
    with Child(hold_each, using, *names) as child, ThreadPoolExecutor(1) as pool:
        assert child.hear() == "held"
        proxy = proxied(using)
        for number, one in enumerate(names, 1):
            assert advisory_lock(one, using=using).try_acquire(timeout=0.5) is None  # opens a session to wait on
            proxy.swallow(number, cut=cut)
            waiting = pool.submit(wait, using, one)
            eventually(lambda one=one, it=waiting: waiters(using, one) or it.done(), "neither waits nor ended")
            child.say(one)
            assert child.hear() == "released"
            freed(proxy, using, one, waiting.result())


@pytest.mark.parametrize("cut", [True, pytest.param(False, marks=pytest.mark.tier2)], ids=["cut", "silent"])
@each_engine
def test_r7_the_reply_of_a_release(using: str, cut: bool, name: str, proxied: Proxied) -> None:
    """Whether it was freed is not known: the holder is told, and the session ends so that the server frees it."""
    proxy = connected(using, proxied)
    lock = advisory_lock(name, using=using)
    lease = lock.acquire()
    proxy.swallow(1, cut=cut)
    with pytest.raises((LockLost, BackendUnavailable)):
        lease.release()
    assert not lease.held
    lease.release()  # twice is harmless
    proxy.cut()
    eventually(lambda: not holders(using, name), "still held")
    proxy.heal()
    advisory_lock(name, using=using).acquire(timeout=10).release()


@each_engine
def test_r7_a_grant_that_comes_late_is_given_back(using: str, name: str, proxied: Proxied) -> None:
    """The server is slow: the caller has gone when the grant arrives, and its session has ended by then."""
    proxy = connected(using, proxied)
    other = advisory_lock(f"{name}-other", using=using).acquire()  # without it the session is closed for being idle
    held = proxy.hold("reply")
    with pytest.raises((BackendUnavailable, LockNotAcquired)):
        advisory_lock(name, using=using).acquire(timeout=TIMEOUT)
    held.wait()
    held.pass_on()
    eventually(lambda: not holders(using, name), "held by a session that nobody asks")
    with suppress(LockLost):  # if this machine stands still for seconds
        other.release()
    with advisory_lock(name, using=using, timeout=10) as lease:
        assert holders(using, name) == [session_of(lease).server_id]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a lease has the time to ask again."""
    monkeypatch.setattr(redis, "SILENCE", 20.0)
    monkeypatch.setattr(leasetable, "PATIENCE", 20.0)


def listed(using: str, name: str) -> list[Any]:
    (report,) = held_locks(using)
    return [report.error] if report.error else [info.fence for info in report.locks if info.name == name]


@each_lease
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_r7_a_lost_reply_of_a_lease(using: str, name: str, cut: bool, proxied: Proxied, patient: None) -> None:
    """What was asked was executed, and is asked again: the lease is ours, the release is one."""
    proxy, lock = proxied(using), advisory_lock(name, using=using, timeout=20)
    lock.acquire().release()
    proxy.swallow(1, cut=cut)
    lease = lock.acquire()
    assert listed(using, name) == [lease.fence]
    proxy.swallow(1, cut=cut)
    lease.extend(20)
    assert lease.held
    proxy.swallow(1, cut=cut)
    lease.release()
    eventually(lambda: listed(using, name) == [], "still held")


@each_lease
def test_r7_a_lease_whose_caller_has_gone_is_given_back(using: str, name: str, proxied: Proxied, patient: None) -> None:
    proxy, lock = proxied(using), advisory_lock(name, using=using, ttl=60)
    lock.acquire(timeout=20).release()
    proxy.swallow(1)
    with suppress(BackendUnavailable):
        lock.acquire(timeout=0).release()
    eventually(lambda: listed(using, name) == [], "still held")
