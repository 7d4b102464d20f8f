"""A renewal that meets a release, and a wait that is cancelled before it begins."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.flow import run
from django_distlock.keys import derive_key
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from django_distlock.signals import lock_lost, lock_released
from tests.faults.server import SESSION_LOCKS

if TYPE_CHECKING:
    from django_distlock.records import Grant

pytestmark = pytest.mark.usefixtures("databases")


def test_r17_a_renewal_in_the_midst_of_a_release_is_no_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the lock back already, and the release is about to hear of it."""
    backend: Any = registry.entry("memory").backend
    given, renewed = threading.Event(), threading.Event()
    heard: list[str] = []

    def lost(**facts: Any) -> None:
        heard.append("lost")

    def released(**facts: Any) -> None:
        heard.append("released")

    def release(grant: Grant) -> bool:
        result = type(backend).release(backend, grant)
        given.set()
        assert renewed.wait(10)
        return result

    monkeypatch.setattr(backend, "release", release)
    lock_lost.connect(lost)
    lock_released.connect(released)
    try:
        lease = advisory_lock(name, using="memory").acquire()
        thread = threading.Thread(target=lease.release)
        grant = lease._grant
        thread.start()
        assert given.wait(10)
        keepalive._renew(lease._hold, grant, 30)
        renewed.set()
        thread.join()
        assert heard == ["released"]
        assert not lease.lost
    finally:
        lock_lost.disconnect(lost)
        lock_released.disconnect(released)


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r7_a_wait_that_is_cancelled_before_it_has_its_session_gives_that_back(using: str, name: str) -> None:
    """Else eight of them leave the alias without a session to wait on."""
    backend: Any = registry.entry(using).backend
    session = run(backend.sessions.lend(monotonic() + 5))
    backend.sessions.give_back(session)
    assert session.mutex.try_acquire()
    claim = Claim(key=derive_key("", using, name))
    flow = backend._wait(claim, monotonic() + 5, monotonic() + 5)
    assert next(flow).method.__name__ == "acquire"
    with pytest.raises(asyncio.CancelledError):
        flow.throw(asyncio.CancelledError())
    assert not session.mutex.try_acquire(), "it has not been ours"
    session.mutex.release()
    assert not backend.sessions._lent
    assert run(backend.sessions.lend(monotonic() + 5)) is session
    backend.sessions.give_back(session)
