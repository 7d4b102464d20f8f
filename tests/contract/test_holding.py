"""R17: every release verifies, and a loss is told; an operator takes the lock away, and its holder hears of it from us.
R19 to R21: what a lease promises of its end, that what has ended is never revived, and that fences rise."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotHeld, advisory_lock, break_lock
from django_distlock.concurrency import clock
from django_distlock.records import drift
from django_distlock.signals import lock_broken, lock_lost
from tests.conftest import eventually
from tests.contract.conftest import both_faces, with_fence, with_ttl
from tests.contract.rivals import RivalError
from tests.contract.watching import end_lease, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.dispatch import Signal

    from tests.contract.actors import Actor


# Renewed after a third of it, which is when a loss is noticed, long before its end. A session that was ended is noticed
# by its heartbeat.
SHORT = 6.0


@pytest.fixture
def lock(using: str, name: str, backend: Any) -> Any:
    """A lock whose loss is noticed soon."""
    return advisory_lock(name, using=using, ttl=SHORT) if backend.supports_ttl else advisory_lock(name, using=using)


@contextmanager
def hears(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """What the signal tells."""
    told: list[dict[str, Any]] = []

    def receive(**facts: Any) -> None:
        told.append(facts)

    signal.connect(receive)
    try:
        yield told
    finally:
        signal.disconnect(receive)


@pytest.fixture
def losses() -> Iterator[list[dict[str, Any]]]:
    with hears(lock_lost) as told:
        yield told


def test_r17_r20_the_holder_is_told_and_may_ask_again(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None], losses: list[dict[str, Any]]
) -> None:
    """By the lease, the callback, the signal, and the release; a renewal is denied."""
    # a session without a lock is closed after some seconds, which would tell the holder as well
    kept = other.acquire(advisory_lock(f"{lock.name} kept", using=lock.using))
    lease = me.acquire(lock)
    called: list[Any] = []
    lease.on_lost(called.append)
    take_away(lock.name)
    eventually(lambda: called, "the callback was not called")
    assert (lease.lost, lease.held) == (True, False)
    with pytest.raises(LockLost, match="was lost"):
        lease.ensure_held()
    eventually(lambda: [loss for loss in losses if loss["name"] == lock.name], "no signal")
    (loss,) = [loss for loss in losses if loss["name"] == lock.name]
    assert (loss["using"], loss["hold"] >= 0) == (lock.using, True)
    assert loss["reason"] in ("session", "stolen"), "it was told only at the end of its lease"
    lease.on_lost(called.append)  # too late: called at once
    assert called == [lease, lease]
    again = me.acquire(lock)
    assert (lease.held, again.held) == (False, True)
    with pytest.raises(LockLost):
        me.release(lease)
    me.release(lease)
    assert again.held
    me.release(again)
    with suppress(LockLost):  # where it was on the same session
        other.release(kept)


@both_faces
def test_r17_the_release_notices_what_nobody_has_noticed(
    me: Actor, using: str, name: str, take_away: Callable[[str], None], losses: list[dict[str, Any]]
) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    called: list[Any] = []
    lease.on_lost(called.append)
    take_away(name)
    with pytest.raises(LockLost):
        me.release(lease)
    assert lease.lost
    assert called == [lease]
    assert len(losses) == 1


def test_r17_the_victim_is_told_and_its_successor_is_left_alone(
    me: Actor, rival: Any, using: str, name: str, backend: Any
) -> None:
    """In another process. What an operator was shown before the change of hands breaks nothing after it."""
    with hears(lock_broken) as heard:
        victim = rival.acquire(using, name, ttl=SHORT / 2) if backend.supports_ttl else rival.acquire(using, name)
        (shown,) = listed(using, name)
        assert break_lock(shown, reason="a test") is True
    assert [(facts["name"], facts["using"], facts["reason"]) for facts in heard] == [(name, using, "a test")]
    lease = me.acquire(advisory_lock(name, using=using))
    assert break_lock(shown) is False
    eventually(lambda: rival.get(victim, "lost"), "the victim is not told")
    with pytest.raises(RivalError, match="LockLost"):
        rival.release(victim)
    lease.ensure_held()
    (now,) = listed(using, name)
    assert (now.holder, now.fence, now.details) != (shown.holder, shown.fence, shown.details)
    me.release(lease)
    assert break_lock(now) is False


def test_r17_what_no_holder_has_breaks_nothing(me: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    (info,) = listed(using, name)
    wrong = dict.fromkeys(info.details, "1")
    for other in (
        replace(info, details=wrong, fence=(info.fence or 0) + 1),
        replace(info, details={}, fence=None),
        replace(info, key="00" * 32, fence=(info.fence or 0) + 1),
    ):
        assert break_lock(other) is False
    lease.ensure_held()
    me.release(lease)


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
def test_r20_r21_what_has_expired_is_never_revived(me: Actor, rival: Any, using: str, name: str, backend: Any) -> None:
    """Neither by extend nor by a renewal that comes too late, and if nobody else has it in between."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=60))
    grant = lease._grant
    end_lease(using, name)
    assert backend.extend(grant, 10) is None
    with pytest.raises(LockLost):
        me.extend(lease, 10)
    held = rival.acquire(using, name, timeout=0)
    assert not backend.supports_fencing or rival.get(held, "fence") > lease.fence
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
