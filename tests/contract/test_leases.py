"""R19 to R21: what a lease promises of its end, that what has ended is never revived, and that fences rise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotHeld, advisory_lock
from django_distlock.concurrency import clock
from django_distlock.records import drift
from tests.contract.conftest import both_faces, with_fence, with_fence_and_ttl, with_ttl
from tests.contract.watching import end_lease

if TYPE_CHECKING:
    from tests.contract.actors import Actor


@with_ttl
@both_faces
def test_r19_validity_counts_from_before_the_request_less_drift(me: Actor, using: str, name: str) -> None:
    before = clock.now()
    lease = me.acquire(advisory_lock(name, using=using, ttl=20))
    after = clock.now()
    assert before + 20 - drift(20) <= lease.valid_until <= after + 20 - drift(20)
    assert drift(20) == pytest.approx(0.202)
    me.release(lease)


@with_ttl
@both_faces
def test_r20_extend_gives_more_time(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=20))
    fence = backend.supports_fencing and lease.fence
    before = clock.now()
    me.extend(lease, 60)
    assert before + 60 - drift(60) <= lease.valid_until <= clock.now() + 60
    assert (backend.supports_fencing and lease.fence) == fence
    me.release(lease)
    with pytest.raises(LockNotHeld):
        me.extend(lease, 60)


@with_ttl
@both_faces
def test_r20_what_has_expired_is_never_revived(me: Actor, rival: Any, using: str, name: str, backend: Any) -> None:
    """Neither by extend nor by a renewal that comes too late, and if nobody else has it in between."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=60))
    grant = lease._grant
    end_lease(using, name)
    assert backend.extend(grant, 10) is None
    with pytest.raises(LockLost):
        me.extend(lease, 10)
    held = rival.acquire(using, name, timeout=0)
    assert backend.extend(grant, 10) is None
    assert backend.release(grant) is False
    with pytest.raises(LockLost):
        me.release(lease)
    assert me.try_acquire(advisory_lock(name, using=using)) is None
    rival.release(held)


@with_fence
def test_r21_fences_rise_in_the_order_of_grants(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    fences = []
    for _ in range(5):
        for actor in (me, other):
            lease = actor.acquire(lock)
            fences.append(lease.fence)
            actor.release(lease)
        held = rival.acquire(using, name)
        fences.append(rival.get(held, "fence"))
        rival.release(held)
    assert fences == sorted(set(fences))


@with_fence_and_ttl
def test_r21_fences_rise_also_after_a_loss(me: Actor, other: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=60))
    end_lease(using, name)
    with pytest.raises(LockLost):
        me.extend(lease, 60)
    theirs = other.acquire(advisory_lock(name, using=using))
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
