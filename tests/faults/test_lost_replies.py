"""R7: the reply of every single statement of an acquire and of a release is lost once: afterwards nothing is held, or
we know that we hold.

The connection is either cut at our end or falls silent; the server does not notice either, and did what it was told.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, DistlockError, LockLost, LockNotAcquired, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.server import SESSION_LOCKS, holders, session_of, waiters
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
each_ending = pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])

TIMEOUT = 0.5
IDLE = 5.0
MOST_REQUESTS = 40


def acquire(name: str, using: str) -> Any:
    return advisory_lock(name, using=using).try_acquire(timeout=TIMEOUT)


def acquire_in_task(name: str, using: str) -> Any:
    """The lease lives on after the task and its loop."""
    return asyncio.run(advisory_lock(name, using=using).atry_acquire(timeout=TIMEOUT))


def known_or_free(proxy: Proxy, using: str, name: str, ask: Callable[[str, str], Any]) -> None:
    """Acquire while a reply is lost. With a lease: we hold, and nobody else does. Without: nobody holds once the server
    has noticed that our old connection is gone."""
    began = time.monotonic()
    try:
        lease = ask(name, using)
    except (BackendUnavailable, LockNotAcquired):
        lease = None
    within(time.monotonic() - began, TIMEOUT + 0.05)
    if lease is not None:
        assert holders(using, name) == [session_of(lease).server_id]
        proxy.heal()
        lease.release()
    proxy.heal()
    proxy.cut()
    eventually(lambda: not holders(using, name), "held, and nobody knows")


@pytest.mark.alone
@pytest.mark.parametrize("ask", [acquire, acquire_in_task], ids=["thread", "task"])
@each_ending
@each_engine
def test_r7_each_reply_of_a_first_acquire(
    using: str, cut: bool, ask: Callable[[str, str], Any], name: str, proxied: Proxied
) -> None:
    """From the greeting of the server on: connecting, preparing, locking."""
    proxy = proxied(using)
    for number in range(1, MOST_REQUESTS):
        registry.close()
        proxy.swallow(number, cut=cut)
        before = proxy.requests
        known_or_free(proxy, using, f"{name}{number}", ask)
        if proxy.requests - before < number:  # there was no such request any more
            assert number > 4
            return
    raise AssertionError(f"an acquire of {MOST_REQUESTS} requests")


@pytest.mark.parametrize("ask", [acquire, acquire_in_task], ids=["thread", "task"])
@each_ending
@each_engine
def test_r7_the_reply_of_a_later_acquire(
    using: str, cut: bool, ask: Callable[[str, str], Any], name: str, proxied: Proxied
) -> None:
    """On a session that is open and holds another lock, which is lost with it."""
    proxy = proxied(using)
    for _ in range(2):
        with advisory_lock(name, using=using):
            pass
    other = advisory_lock(name + "-other", using=using).acquire()
    proxy.swallow(1, cut=cut)
    known_or_free(proxy, using, name, ask)
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


@each_ending
@each_engine
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
            thread.join(10)
            assert not thread.is_alive()
            if outcome[0] is not None and not isinstance(outcome[0], Exception):
                assert holders(using, one) == [session_of(outcome[0]).server_id]
                proxy.heal()
                outcome[0].release()
            proxy.heal()
            proxy.cut()
            eventually(lambda one=one: not holders(using, one), "held, and nobody knows")


def wait(using: str, name: str, outcome: list[Any]) -> None:
    try:
        outcome.append(advisory_lock(name, using=using).try_acquire(timeout=1))
    except DistlockError as error:
        outcome.append(error)
    finally:
        connections.close_all()


@each_ending
@each_engine
def test_r7_the_reply_of_a_release(using: str, cut: bool, name: str, proxied: Proxied) -> None:
    """Whether it was freed is not known: the holder is told, and the session ends so that the server frees it."""
    proxy = proxied(using)
    for _ in range(2):
        with advisory_lock(name, using=using):
            pass
    lease = advisory_lock(name, using=using).acquire()
    proxy.swallow(1, cut=cut)
    with pytest.raises((LockLost, BackendUnavailable)):
        lease.release()
    assert not lease.held
    lease.release()  # twice is harmless
    proxy.cut()
    eventually(lambda: not holders(using, name), "still held")
    proxy.heal()
    with advisory_lock(name, using=using, timeout=5):
        pass


@each_ending
@each_engine
def test_r7_the_reply_of_a_release_to_a_task(using: str, cut: bool, name: str, proxied: Proxied) -> None:
    """A task sends its release without the watchdog: its own limit tells it that the reply does not come."""
    proxy = proxied(using)

    async def work() -> None:
        lock = advisory_lock(name, using=using)
        for _ in range(2):
            async with lock:
                pass
        lease = await lock.aacquire()
        proxy.swallow(1, cut=cut)
        with pytest.raises((LockLost, BackendUnavailable)):
            await lease.arelease()
        assert not lease.held

    asyncio.run(work())
    proxy.cut()
    eventually(lambda: not holders(using, name), "still held")


@each_engine
def test_r7_a_grant_that_comes_late_is_given_back(using: str, name: str, proxied: Proxied) -> None:
    """The server is slow, not silent: the caller has gone when the grant arrives, on a session that lives on."""
    proxy = proxied(using)
    for _ in range(2):
        with advisory_lock(name, using=using):
            pass
    proxy.delay(0.8 * TIMEOUT)  # on the way there, and on the way back
    with pytest.raises((BackendUnavailable, LockNotAcquired)):
        advisory_lock(name, using=using).acquire(timeout=TIMEOUT)
    eventually(lambda: holders(using, name), "it was not granted", pause=0.001)
    proxy.delay(0)
    # sooner than the session is closed because it is idle, which would free the lock as well
    eventually(lambda: not holders(using, name), "held by a session that nobody asks", patience=IDLE - 1)
    with advisory_lock(name, using=using, timeout=5) as lease:
        assert holders(using, name) == [session_of(lease).server_id]
