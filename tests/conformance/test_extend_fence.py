"""extend(), and R21: fencing tokens, for backends whose locks have a TTL."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotHeld, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.records import drift
from tests.conformance.conftest import with_fence, with_fence_and_ttl, with_ttl
from tests.conftest import eventually

if TYPE_CHECKING:
    from tests.conformance.actors import Actor


@with_ttl
def test_extend_gives_more_time(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=1))
    fence = backend.supports_fencing and lease.fence
    before = monotonic()
    me.extend(lease, 60)
    assert before + 60 - drift(60) <= lease.valid_until <= monotonic() + 60
    assert (backend.supports_fencing and lease.fence) == fence
    me.release(lease)
    with pytest.raises(LockNotHeld):
        me.extend(lease, 60)


@with_ttl
def test_extend_to_a_shorter_time_is_renewed_in_time(me: Actor, using: str, name: str) -> None:
    """The keepalive thread, asleep until the renewal of a long lease, is told."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=30))
    threading.Event().wait(0.1)  # the thread has looked and sleeps
    me.extend(lease, 0.9)
    first = lease.valid_until
    assert first < monotonic() + 0.9
    eventually(lambda: monotonic() > first + 0.1, "")
    assert lease.held
    me.release(lease)


@with_ttl
@pytest.mark.parametrize(
    ("ttl", "error", "message"),
    [
        (0, ValueError, "ttl must be above zero, not 0."),
        (-1, ValueError, "ttl must be above zero, not -1."),
        (True, TypeError, "ttl must be a number of seconds, not bool."),
        (None, TypeError, "ttl must be a number of seconds, not NoneType."),
        (float("nan"), ValueError, "ttl must be finite, not nan."),
    ],
)
def test_extend_refuses_bad_input(
    me: Actor, using: str, name: str, ttl: Any, error: type[Exception], message: str
) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    with pytest.raises(error) as refused:
        me.extend(lease, ttl)
    assert str(refused.value) == message
    assert lease.held
    me.release(lease)


@with_fence
def test_r21_fences_rise_in_the_order_of_grants(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    fences = []
    for _ in range(5):
        for actor in (me, other):
            lease = actor.acquire(lock, timeout=1)
            fences.append(lease.fence)
            actor.release(lease)
        held = rival.acquire(using, name)
        fences.append(rival.fence(held))
        rival.release(held)
    assert fences == sorted(set(fences))


@with_fence_and_ttl
def test_r21_fences_rise_also_after_a_loss(me: Actor, other: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.2, max_hold=0.2))
    theirs = other.acquire(advisory_lock(name, using=using), timeout=2)
    assert theirs.fence > lease.fence
    with pytest.raises(LockLost):
        me.release(lease)
    other.release(theirs)


@with_fence_and_ttl
def test_r21_a_fence_is_not_below_the_clock(me: Actor, using: str, name: str) -> None:
    """Microseconds: so nothing has to be kept for ever, and it survives a server that forgot everything."""
    before = time.time_ns() // 1000
    lease = me.acquire(advisory_lock(name, using=using))
    assert before - 5_000_000 <= lease.fence <= time.time_ns() // 1000 + 5_000_000
    me.release(lease)
