"""R16 and R17: the Lease owns the lock, its loss is told, and signals tell of its life."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, break_lock, held_locks
from django_distlock.manager.release import lose
from tests.conftest import PATIENCE, eventually
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor


def test_r16_the_states_of_a_lease_and_releasing_twice(me: Actor, other: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    lease.ensure_held()
    assert (lease.held, lease.lost) == (True, False)
    me.release(lease)
    assert (lease.held, lease.lost) == (False, False)
    with pytest.raises(LockNotHeld, match="has been released"):
        lease.ensure_held()
    theirs = other.acquire(lock, timeout=0)
    me.release(lease)
    assert theirs.held
    assert me.try_acquire(lock) is None
    other.release(theirs)


@both_faces
def test_r17_a_block_whose_lock_was_lost_raises_at_its_end_unless_it_has_another_error(
    me: Actor, lock: Any, take_away: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """LockLost never hides the error of the body; it is logged then."""
    me.enter(lock)
    take_away(lock.name)
    with pytest.raises(LockLost):
        me.exit(lock)
    me.enter(lock)
    take_away(lock.name)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "django_distlock"):
        assert not me.exit(lock, KeyError("the body's own"))
    assert "lost" in caplog.text


def test_r17_a_waiter_of_this_process_gets_in_after_the_loss_and_every_callback_is_called(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails is logged."""
    lease = me.acquire(lock)
    waiting = other.start(lock, "acquire", timeout=PATIENCE)
    called: list[Any] = []

    def fail(lease: Any) -> None:
        raise ZeroDivisionError

    for callback in (fail, called.append):
        lease.on_lost(callback)
    take_away(lock.name)
    other.release(waiting.result(PATIENCE))
    eventually(lambda: called == [lease], "the second callback was not called")
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(LockLost):
        me.release(lease)


def test_r17_a_callback_is_not_missed_if_the_loss_comes_while_it_is_registered(
    me: Actor, lock: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keepalive thread notices the loss between the question and the registration."""
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


def test_a_table_or_row_lock_is_not_broken(me: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    (info,) = held_locks("memory")[0].locks
    with pytest.raises(UnsupportedOperation):
        break_lock(replace(info, details={**info.details, "kind": "relation"}))
    me.release(lease)
