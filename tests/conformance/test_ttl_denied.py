"""R18: the reason of a loss, where the engine was asked before the end of a lease and has answered after it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockLost, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from tests.conformance.conftest import with_ttl
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from tests.conformance.actors import Actor

pytestmark = with_ttl


@pytest.fixture
def held_up(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a lease reaches the engine when it is over by the clocks of both sides."""

    def over(grant: Any) -> None:
        eventually(lambda: monotonic() > grant.valid_until, "it does not end")
        eventually(lambda: ended(grant), "it does not end at the engine")

    def ended(grant: Any) -> bool:
        try:
            return not backend.verify(grant)
        except BackendUnavailable:  # it has ended at some nodes of Redlock, and one of the others is late
            return False

    def late(original: Any) -> Any:
        def call(grant: Any, *args: Any) -> Any:
            over(grant)
            return original(grant, *args)

        return call

    def alate(original: Any) -> Any:
        async def call(grant: Any, *args: Any) -> Any:
            await asyncio.to_thread(over, grant)
            return await original(grant, *args)

        return call

    for method in ("extend", "release"):
        monkeypatch.setattr(backend, method, late(getattr(backend, method)))
        monkeypatch.setattr(backend, f"a{method}", alate(getattr(backend, f"a{method}")))
    monkeypatch.setattr(backend, "release_fast", lambda grant: False)  # a release in fewer steps


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keepalive thread leaves leases alone."""
    monkeypatch.setattr("django_distlock.manager.keepalive.keepalive._look_after", lambda hold, now, renewals: now + 1)


def _renewals() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("-renew")]


def test_r18_a_renewal_that_is_denied_after_the_end(me: Actor, using: str, name: str, held_up: None) -> None:
    """It has expired; nobody need have taken the lock."""
    lost = threading.Event()
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.3))
    lease.on_lost(lambda lease: lost.set())
    assert lost.wait(PATIENCE)  # and not lease.lost, which looks at the clock itself
    eventually(lambda: not _renewals(), "the renewal does not end")
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.release(lease)


def test_r18_an_extension_that_is_denied_after_the_end(
    me: Actor, using: str, name: str, held_up: None, nobody_looks: None
) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.3))
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.start(lease, "extend", 0.3).result(PATIENCE)
    with pytest.raises(LockLost):
        me.release(lease)


def test_r18_a_release_that_is_denied_after_the_end(
    me: Actor, using: str, name: str, held_up: None, nobody_looks: None
) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.3))
    with pytest.raises(LockLost):
        me.release(lease)
    assert lease._hold.reason == "expired"
