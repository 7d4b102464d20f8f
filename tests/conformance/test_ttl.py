"""R18 to R20 for backends whose locks have a TTL: validity and renewal."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.records import drift
from tests.conformance.actors import ThreadActor
from tests.conformance.conftest import with_ttl
from tests.conformance.rivals import RivalError
from tests.conformance.watching import take_away
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.conformance.actors import Actor
    from tests.matrix import Entry


pytestmark = [pytest.mark.alone, with_ttl]

# Of a lease that has to be renewed, which has two thirds of this for it: a machine stands still for 0.2 s at times.
RENEWED = 0.9


def test_r19_validity_counts_from_before_the_request_less_drift(me: Actor, using: str, name: str) -> None:
    before = monotonic()
    lease = me.acquire(advisory_lock(name, using=using, ttl=20))
    after = monotonic()
    assert before + 20 - drift(20) <= lease.valid_until <= after + 20 - drift(20)
    assert drift(20) == pytest.approx(0.202)
    me.release(lease)


def test_r19_a_grant_that_comes_after_its_own_validity_is_given_back(
    me: Actor, rival: Any, using: str, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer takes longer than the TTL; the second one counts."""
    slow = [True]
    released: list[Any] = []
    answers = (("acquire_fast", _late(slow)), ("try_acquire", _late(slow)), ("atry_acquire", _alate(slow)))
    for method, answer in answers:
        monkeypatch.setattr(backend, method, answer(getattr(backend, method)))
    for method in ("release", "arelease"):
        monkeypatch.setattr(backend, method, _noting(released, getattr(backend, method)))
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.6), timeout=5)
    assert len({id(grant) for grant in released}) == 1
    assert lease.held
    assert lease.valid_until > monotonic()
    me.release(lease)
    rival.release(rival.acquire(using, name, timeout=1))


def _late(slow: list[bool]) -> Any:
    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            grant = original(*args, **kwargs)
            if grant is not None and slow:
                slow.clear()
                threading.Event().wait(0.65)
            return grant

        return call

    return wrap


def _alate(slow: list[bool]) -> Any:
    def wrap(original: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            grant = await original(*args, **kwargs)
            if grant is not None and slow:
                slow.clear()
                threading.Event().wait(0.65)
            return grant

        return call

    return wrap


def _noting(calls: list[Any], original: Any) -> Any:
    def call(grant: Any) -> Any:
        calls.append(grant)
        return original(grant)

    return call


def test_r20_it_is_renewed_while_it_is_held(me: Actor, rival: Any, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using, ttl=RENEWED))
    fenced = backend.supports_fencing
    first, fence = lease.valid_until, fenced and lease.fence
    eventually(lambda: lease.valid_until > first + RENEWED, "it is not renewed")
    assert monotonic() > first
    assert (lease.held, fenced and lease.fence) == (True, fence)
    with pytest.raises(RivalError, match="LockNotAcquired"):
        rival.acquire(using, name, timeout=0)
    me.release(lease)
    rival.release(rival.acquire(using, name, timeout=0))


def test_r20_also_if_it_was_waited_for(me: Actor, rival: Any, using: str, name: str) -> None:
    """The keepalive thread found nothing to do while we waited; it is there when it is needed."""
    held = rival.acquire(using, name)
    waiting = me.start(advisory_lock(name, using=using, ttl=RENEWED), "acquire", timeout=5)
    with pytest.raises(TimeoutError):
        waiting.result(0.15)
    rival.release(held)
    lease = waiting.result(5)
    first = lease.valid_until
    eventually(lambda: lease.valid_until > first + 0.2, "it is not renewed")
    assert lease.held
    me.release(lease)


@pytest.mark.tier2
def test_r20_many_leases_of_one_process(me: Actor, using: str, name: str) -> None:
    leases = [me.acquire(advisory_lock(f"{name}{number}", using=using, ttl=3 * RENEWED)) for number in range(20)]
    ends = [lease.valid_until for lease in leases]
    eventually(lambda: monotonic() > max(ends) + 0.05, "")
    assert all(lease.held for lease in leases)
    assert sum(thread.name == "distlock-keepalive" for thread in threading.enumerate()) == 1
    for lease in leases:
        me.release(lease)


@pytest.mark.tier2
def test_r20_renewal_ends_with_max_hold(me: Actor, other: Actor, using: str, name: str) -> None:
    began = monotonic()
    lease = me.acquire(advisory_lock(name, using=using, ttl=RENEWED, max_hold=1.5 * RENEWED))
    eventually(lambda: lease.lost, "it is held for ever")
    within(monotonic() - began, 1.5 * RENEWED + 0.1, least=1.5 * RENEWED - 0.05)
    other.release(other.acquire(advisory_lock(name, using=using), timeout=1))
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.release(lease)


def test_r20_a_renewal_that_is_denied_tells_the_holder(me: Actor, entry: Entry, using: str, name: str) -> None:
    """A third of the TTL after its start, and not at its end: the next holder may be there already."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=3.0))
    take_away(entry, name)
    eventually(lambda: lease.lost, "it is told only at the end of the lease", patience=2.2)
    with pytest.raises(LockLost):
        me.release(lease)


def test_r20_max_hold_below_the_ttl_shortens_it(me: Actor, using: str, name: str) -> None:
    began = monotonic()
    lease = me.acquire(advisory_lock(name, using=using, ttl=30, max_hold=0.15))
    assert lease.valid_until <= monotonic() + 0.15
    within(lease.valid_until - began, 0.2)
    eventually(lambda: lease.lost, "it is held for ever")
    with pytest.raises(LockLost):
        me.release(lease)


def test_r20_renewal_ends_when_the_owner_thread_is_dead(other: Actor, using: str, name: str) -> None:
    dying = ThreadActor()
    lease = dying.acquire(advisory_lock(name, using=using, ttl=0.3))
    dying.close()
    eventually(lambda: lease.lost, "a dead thread holds it for ever")
    other.release(other.acquire(advisory_lock(name, using=using), timeout=1))


def test_r20_unreachable_is_not_lost(
    me: Actor, using: str, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal that fails is tried again until valid_until."""
    failures: list[int] = []
    original = backend.extend

    def extend(*args: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("no route to the server")
        return original(*args)

    monkeypatch.setattr(backend, "extend", extend)
    lease = me.acquire(advisory_lock(name, using=using, ttl=4 * RENEWED))
    first = lease.valid_until
    with caplog.at_level(logging.WARNING, "django_distlock"):
        eventually(lambda: lease.valid_until > first, "it was not renewed")
    assert lease.held
    assert caplog.text.count("could not be renewed: no route to the server") == 2
    me.release(lease)


def test_r18_lost_at_valid_until_if_it_cannot_be_renewed(
    me: Actor, using: str, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 s after: the lease asks the clock, not the keepalive thread."""

    def extend(*args: Any) -> Any:
        raise OSError

    monkeypatch.setattr(backend, "extend", extend)
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.3))
    end = lease.valid_until
    while monotonic() < end:
        assert lease.held or monotonic() >= end
    assert lease.lost
    with pytest.raises(LockLost, match=r"\(expired\)"):
        lease.ensure_held()
    with pytest.raises(LockLost):
        me.release(lease)


def test_r18_lease_that_ends_in_the_midst_of_a_look_says_why(
    me: Actor, using: str, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is held up between its look at the clock and its look at the engine."""

    def extend(*args: Any) -> Any:
        raise OSError

    look = backend.look

    def late(grant: Any) -> bool:
        threading.Event().wait(max(0.0, end + 0.1 - monotonic()))
        return bool(look(grant))

    monkeypatch.setattr(backend, "extend", extend)
    monkeypatch.setattr("django_distlock.manager.keepalive.keepalive._look_after", lambda hold, now, renewals: now + 1)
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.3))
    end = lease.valid_until
    monkeypatch.setattr(backend, "look", late)
    eventually(lambda: lease.lost, "it is held for ever")
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.release(lease)


def test_r20_what_has_expired_is_never_revived(me: Actor, rival: Any, using: str, name: str, backend: Any) -> None:
    """Neither by extend nor by a renewal that comes too late, and if nobody else has it in between."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.15, max_hold=0.15))
    grant = lease._grant
    eventually(lambda: lease.lost, "it is held for ever")
    threading.Event().wait(0.2)  # the engine counts from when it was asked, which is later
    assert backend.extend(grant, 10) is None
    with pytest.raises(LockLost):
        me.extend(lease, 10)
    held = rival.acquire(using, name, timeout=1)
    assert backend.extend(grant, 10) is None
    assert backend.release(grant) is False
    with pytest.raises(LockLost):
        me.release(lease)
    rival.release(held)


def test_r20_a_renewal_that_comes_too_late_prolongs_nothing(
    me: Actor, rival: Any, using: str, name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine prolongs it just before its end, the answer comes after: nobody has it then, so it is given back."""
    original = backend.extend

    def extend(grant: Any, ttl: float) -> Any:
        threading.Event().wait(grant.valid_until - monotonic() - 0.03)
        renewed = original(grant, ttl)
        threading.Event().wait(grant.valid_until - monotonic() + 0.05)
        return renewed

    monkeypatch.setattr(backend, "extend", extend)
    lease = me.acquire(advisory_lock(name, using=using, ttl=0.9))
    end = lease.valid_until
    eventually(lambda: lease.lost, "a late renewal revived it")
    rival.release(rival.acquire(using, name, timeout=5))
    within(monotonic() - end, 0.35, what="that it was given back")
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.release(lease)
