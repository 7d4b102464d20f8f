"""R7: the reply of every single statement of an acquire and of a release is lost once: afterwards nothing is held, or
we know that we hold.

The connection is either cut at our end or falls silent; the server does not notice either, and did what it was told.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, DistlockError, LockLost, LockNotAcquired, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.faults.server import SESSION_LOCKS, holders, session_of, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
# a lease of a task lives on after the task and its loop
each_way = pytest.mark.parametrize(
    ("cut", "in_task"),
    [
        pytest.param(True, False, id="cut"),
        pytest.param(False, True, id="silent-task", marks=pytest.mark.tier2),
    ],
)
TIMEOUT = 0.5
MOST_REQUESTS = 40


def known_or_free(proxy: Proxy, using: str, name: str, in_task: bool) -> None:
    """Acquire while a reply is lost. With a lease: we hold, and nobody else does. Without: nobody holds once the server
    has noticed that our old connection is gone."""
    lock, lease = advisory_lock(name, using=using), None
    with suppress(BackendUnavailable, LockNotAcquired):
        lease = asyncio.run(lock.aacquire(timeout=TIMEOUT)) if in_task else lock.acquire(timeout=TIMEOUT)
    freed(proxy, using, name, lease)


def freed(proxy: Proxy, using: str, name: str, lease: Any) -> None:
    if lease is not None:
        assert holders(using, name) == [session_of(lease).server_id]
        proxy.heal()
        lease.release()
    proxy.heal()
    proxy.cut()
    eventually(lambda: not holders(using, name), "held, and nobody knows")


@pytest.mark.tier2
@each_way
@each_engine
def test_r7_each_reply_of_a_first_acquire(using: str, cut: bool, in_task: bool, name: str, proxied: Proxied) -> None:
    """From the greeting of the server on: connecting, preparing, locking."""
    proxy = proxied(using)
    for number in range(1, MOST_REQUESTS):
        registry.close()
        proxy.swallow(number, cut=cut)
        before = proxy.requests
        known_or_free(proxy, using, f"{name}{number}", in_task)
        if proxy.requests - before < number:  # there was no such request any more
            assert number > 4
            return
    raise AssertionError(f"an acquire of {MOST_REQUESTS} requests")


@each_way
@each_engine
def test_r7_the_reply_of_a_later_acquire(using: str, cut: bool, in_task: bool, name: str, proxied: Proxied) -> None:
    """On a session that is open and holds another lock, which is lost with it."""
    proxy = proxied(using)
    connect(using)
    connect(using)
    other = advisory_lock(name + "-other", using=using).acquire()
    proxy.swallow(1, cut=cut)
    known_or_free(proxy, using, name, in_task)
    eventually(lambda: other.lost, "the loss of the session is not told")
    with pytest.raises(LockLost):
        other.release()


def hold_each(link: Any, using: str, *names: str) -> None:
    """In a child: hold all names, and release each one when told."""
    leases = {name: advisory_lock(name, using=using).acquire() for name in names}
    link.say("held")
    for _ in names:
        leases[link.hear()].release()
        link.say("released")


@pytest.mark.tier2
@pytest.mark.parametrize(("using", "cut"), [("postgres", False), ("mysql", True)])
def test_r7_each_reply_of_a_wait(using: str, cut: bool, name: str, proxied: Proxied) -> None:
    """The lock becomes free while we wait; the server grants it to us, and we do not hear of it."""
    names = [f"{name}{number}" for number in range(1, 4)]
    with Child(hold_each, using, *names) as child:
        assert child.hear() == "held"
        proxy = proxied(using)
        for number, one in enumerate(names, 1):
            assert advisory_lock(one, using=using).try_acquire(timeout=0.5) is None  # opens a session to wait on
            outcome: list[Any] = []
            proxy.swallow(number, cut=cut)
            thread = threading.Thread(target=wait, args=(using, one, outcome))
            thread.start()
            eventually(lambda one=one, out=outcome: waiters(using, one) or out, "neither waits nor ended")
            child.say(one)
            assert child.hear() == "released"
            thread.join()
            freed(proxy, using, one, None if isinstance(outcome[0], Exception) else outcome[0])


def wait(using: str, name: str, outcome: list[Any]) -> None:
    try:
        outcome.append(advisory_lock(name, using=using).try_acquire(timeout=1))
    except DistlockError as error:
        outcome.append(error)
    finally:
        connections.close_all()


@each_way
@each_engine
def test_r7_the_reply_of_a_release(using: str, cut: bool, in_task: bool, name: str, proxied: Proxied) -> None:
    """Whether it was freed is not known: the holder is told, and the session ends so that the server frees it. A task
    sends its release without the watchdog: its own limit tells it that the reply does not come."""
    proxy = proxied(using)
    lock = advisory_lock(name, using=using)

    async def in_a_task() -> Any:
        for _ in range(2):
            async with lock:
                pass
        lease = await lock.aacquire()
        proxy.swallow(1, cut=cut)
        with pytest.raises((LockLost, BackendUnavailable)):
            await lease.arelease()
        return lease

    if in_task:
        lease = asyncio.run(in_a_task())
    else:
        connect(using)
        connect(using)
        lease = lock.acquire()
        proxy.swallow(1, cut=cut)
        with pytest.raises((LockLost, BackendUnavailable)):
            lease.release()
    assert not lease.held
    lease.release()  # twice is harmless
    proxy.cut()
    eventually(lambda: not holders(using, name), "still held")
    proxy.heal()
    with advisory_lock(name, using=using, timeout=10):
        pass


@each_engine
def test_r7_a_grant_that_comes_late_is_given_back(using: str, name: str, proxied: Proxied) -> None:
    """The server is slow, not silent: the caller has gone when the grant arrives, on a session that lives on."""
    proxy = proxied(using)
    connect(using)
    connect(using)
    other = advisory_lock(f"{name}-other", using=using).acquire()  # without it the session is closed for being idle
    held = proxy.hold("reply")
    with pytest.raises((BackendUnavailable, LockNotAcquired)):
        advisory_lock(name, using=using).acquire(timeout=TIMEOUT)
    held.wait()
    assert holders(using, name), "it was not granted"
    held.pass_on()
    eventually(lambda: not holders(using, name), "held by a session that nobody asks")
    with suppress(LockLost):  # if this machine stands still for seconds
        other.release()
    with advisory_lock(name, using=using, timeout=10) as lease:
        assert holders(using, name) == [session_of(lease).server_id]
