"""R16 and R17: the Lease owns the lock; every release verifies, and a loss is told."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotHeld, advisory_lock
from django_distlock.signals import lock_lost
from tests.conformance.actors import PATIENCE, Face
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.actors import Actor

# A session that was ended is noticed by the keepalive thread; a lease by its renewal, every third of the TTL.
SHORT = 1.2


@pytest.fixture
def lock(using: str, name: str, backend: Any) -> Any:
    """A lock whose loss is noticed soon."""
    return advisory_lock(name, using=using, ttl=SHORT) if backend.supports_ttl else advisory_lock(name, using=using)


@pytest.fixture
def losses() -> Iterator[list[dict[str, Any]]]:
    """What the signal lock_lost told."""
    told: list[dict[str, Any]] = []

    def receive(**facts: Any) -> None:
        told.append(facts)

    lock_lost.connect(receive)
    yield told
    lock_lost.disconnect(receive)


def test_r16_released_by_another_context(me: Actor, other: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    other.release(lease)
    assert not lease.held
    other.release(other.acquire(lock, timeout=0))
    me.release(me.acquire(lock, timeout=0))


@pytest.mark.parametrize(("taker", "giver"), [("sync", "async"), ("async", "sync")])
def test_r16_a_thread_releases_for_a_task_and_a_task_for_a_thread(lock: Any, taker: str, giver: str) -> None:
    faces = [Face(taker), Face(giver)]
    try:
        takes, gives = (face.actor() for face in faces)
        for _ in range(3):
            gives.release(takes.acquire(lock, timeout=0))
    finally:
        for face in faces:
            face.close()


def test_r16_releasing_twice_is_harmless(me: Actor, other: Actor, lock: Any) -> None:
    """Also when somebody else has it meanwhile."""
    lease = me.acquire(lock)
    me.release(lease)
    me.release(lease)
    theirs = other.acquire(lock, timeout=0)
    me.release(lease)
    other.release(lease)
    assert theirs.held
    assert me.try_acquire(lock) is None
    other.release(theirs)


def test_r16_a_lease_is_a_context_manager(me: Actor, other: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    assert me.enter(lease) is lease
    me.exit(lease)
    assert not lease.held
    other.release(other.acquire(lock, timeout=0))


def test_r16_a_lease_that_is_dropped_keeps_the_lock(me: Actor, other: Actor, lock: Any) -> None:
    me.run(lambda: None)
    lease = me.acquire(lock)
    again = me.acquire(lock)
    del again
    me.release(lease)
    assert other.try_acquire(lock) is None
    last = me.acquire(lock)
    for left in list(last._hold.leases):
        me.release(left)


def test_r16_ensure_held_and_the_states_of_a_lease(me: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    lease.ensure_held()
    assert (lease.held, lease.lost) == (True, False)
    assert repr(lease) == f"<Lease {lock.name!r} on {lock.using!r}: held>"
    me.release(lease)
    assert (lease.held, lease.lost) == (False, False)
    assert repr(lease).endswith(": released>")
    with pytest.raises(LockNotHeld, match="has been released"):
        lease.ensure_held()


def test_r17_the_holder_is_told(
    me: Actor, lock: Any, take_away: Callable[[str], None], losses: list[dict[str, Any]]
) -> None:
    """By the lease, the callback, the signal, and the release."""
    lease = me.acquire(lock)
    called: list[Any] = []
    lease.on_lost(called.append)
    take_away(lock.name)
    eventually(lambda: called, "the callback was not called", 7)
    assert (lease.lost, lease.held) == (True, False)
    with pytest.raises(LockLost, match="was lost"):
        lease.ensure_held()
    assert called == [lease]
    eventually(lambda: losses, "no signal")
    (loss,) = losses
    assert (loss["name"], loss["using"]) == (lock.name, lock.using)
    assert loss["reason"] in ("session", "stolen")
    assert loss["hold"] >= 0
    with pytest.raises(LockLost):
        me.release(lease)
    me.release(lease)
    assert repr(lease).endswith(": lost>")
    assert called == [lease]


def test_r17_the_release_notices_what_nobody_has_noticed(
    me: Actor, name: str, using: str, take_away: Callable[[str], None], losses: list[dict[str, Any]]
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


def test_r17_another_exception_goes_first(
    me: Actor, name: str, using: str, take_away: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """LockLost never hides the error of the body; it is logged."""
    lock = advisory_lock(name, using=using)
    me.enter(lock)
    take_away(name)
    with caplog.at_level(logging.WARNING, "django_distlock"):
        assert not me.exit(lock, KeyError("the body's own"))
    assert "lost" in caplog.text


def test_r17_a_with_block_whose_lock_was_lost_raises_at_its_end(
    me: Actor, name: str, using: str, take_away: Callable[[str], None]
) -> None:
    lock = advisory_lock(name, using=using)
    me.enter(lock)
    take_away(name)
    with pytest.raises(LockLost):
        me.exit(lock)


def test_r17_the_next_one_gets_in_and_the_loser_does_not_give_back_its_lock(
    me: Actor, rival: Any, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    take_away(lock.name)
    theirs = rival.acquire(lock.using, lock.name, timeout=3)
    with pytest.raises(LockLost):
        me.release(lease)
    assert me.try_acquire(lock) is None
    rival.release(theirs)


def test_r17_the_loser_itself_may_ask_again(me: Actor, lock: Any, take_away: Callable[[str], None]) -> None:
    lease = me.acquire(lock)
    take_away(lock.name)
    eventually(lambda: lease.lost, "the loss is not noticed", 7)
    again = me.acquire(lock, timeout=2)
    assert (lease.held, again.held) == (False, True)
    with pytest.raises(LockLost):
        me.release(lease)
    assert again.held
    me.release(again)


def test_r17_a_waiter_of_this_process_gets_in_after_the_loss(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    waiting = other.start(lock, "acquire", timeout=7)
    take_away(lock.name)
    other.release(waiting.result(PATIENCE))
    assert lease.lost


def test_r17_a_callback_that_comes_too_late_is_called_at_once(
    me: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    take_away(lock.name)
    eventually(lambda: lease.lost, "the loss is not noticed", 7)
    called: list[Any] = []
    lease.on_lost(called.append)
    assert called == [lease]


def test_r17_a_callback_is_not_missed_if_the_loss_comes_while_it_is_registered(
    me: Actor, lock: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keepalive thread notices the loss between the question and the registration."""
    from django_distlock.manager.release import lose

    lease = me.acquire(lock)
    called: list[Any] = []

    def look(grant: Any) -> bool:
        monkeypatch.undo()
        lose(lease._hold, "session")
        return True

    monkeypatch.setattr(backend, "look", look)
    lease.on_lost(called.append)
    assert called == [lease]
    backend.release(lease._grant)


def test_r17_no_callback_after_the_release(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    called: list[Any] = []
    lease.on_lost(called.append)
    me.release(lease)
    theirs = other.acquire(lock, timeout=0)
    take_away(lock.name)
    eventually(lambda: theirs.lost, "the loss is not noticed", 7)
    assert called == []
    with pytest.raises(LockLost):
        other.release(theirs)


def test_r17_a_callback_that_fails_is_logged_and_the_others_are_called(
    me: Actor, lock: Any, take_away: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    lease = me.acquire(lock)
    called: list[Any] = []

    def fail(lease: Any) -> None:
        raise ZeroDivisionError

    lease.on_lost(fail)
    lease.on_lost(called.append)
    take_away(lock.name)
    eventually(lambda: called, "the second callback was not called", 7)
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(LockLost):
        me.release(lease)


def test_r18_the_loss_is_seen_in_time(me: Actor, lock: Any, take_away: Callable[[str], None]) -> None:
    """7 s for sessions, by heartbeat and watchdog; at once when the server hangs up. A third of the TTL for leases."""
    lease = me.acquire(lock)
    take_away(lock.name)
    began = time.monotonic()
    eventually(lambda: lease.lost, "the loss is not noticed", 7)
    within(time.monotonic() - began, 1)
    with pytest.raises(LockLost):
        me.release(lease)
