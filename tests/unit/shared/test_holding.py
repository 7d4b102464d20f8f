"""R16 and R17: the Lease owns the lock, its loss is told, and signals tell of its life."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import (
    BackendUnavailable,
    LockLost,
    LockNotHeld,
    LockTimeout,
    UnsupportedOperation,
    break_lock,
    held_locks,
    lock_all,
)
from django_distlock.signals import lock_acquired, lock_lost, lock_released, lock_timed_out
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import Face
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.actors import Actor

SIGNALS = {"acquired": lock_acquired, "released": lock_released, "timed_out": lock_timed_out, "lost": lock_lost}


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every signal with its facts, in order."""
    told: list[tuple[str, dict[str, Any]]] = []
    receivers = {}
    for kind, signal in SIGNALS.items():

        def receive(kind: str = kind, **facts: Any) -> None:
            told.append((kind, facts))

        receivers[kind] = receive
        signal.connect(receive)
    yield told
    for kind, signal in SIGNALS.items():
        signal.disconnect(receivers[kind])


@pytest.mark.parametrize(("taker", "giver"), [("sync", "async"), ("async", "sync"), ("sync", "sync")])
def test_r16_released_by_another_context(lock: Any, taker: str, giver: str) -> None:
    faces = [Face(taker), Face(giver)]
    try:
        takes, gives = (face.actor() for face in faces)
        for _ in range(3):
            lease = takes.acquire(lock, timeout=0)
            gives.release(lease)
            assert not lease.held
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


@pytest.mark.parametrize("several", [False, True])
def test_r16_a_lease_outlives_the_task_and_the_loop_that_acquired_it(lock: Any, several: bool) -> None:
    recipe = lock_all([lock.name, f"{lock.name}2"], using="memory") if several else lock
    lease = asyncio.run(recipe.aacquire())
    gc.collect()
    lease.ensure_held()
    assert lock.try_acquire() is None, "another context"
    lease.release()


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


def test_r17_a_waiter_of_this_process_gets_in_after_the_loss(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    waiting = other.start(lock, "acquire", timeout=PATIENCE)
    take_away(lock.name)
    other.release(waiting.result(PATIENCE))
    assert lease.lost


def test_r17_no_callback_after_the_release(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    lease = me.acquire(lock)
    called: list[Any] = []
    lease.on_lost(called.append)
    me.release(lease)
    theirs = other.acquire(lock, timeout=0)
    take_away(lock.name)
    with pytest.raises(LockLost):
        other.release(theirs)
    assert called == []


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
    eventually(lambda: called, "the second callback was not called")
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(LockLost):
        me.release(lease)


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


def test_signals_of_a_life(me: Actor, lock: Any, backend: Any, heard: list[Any]) -> None:
    lease = me.acquire(lock)
    me.release(me.acquire(lock))
    me.release(lease)
    assert [kind for kind, _ in heard] == ["acquired", "released"]
    for _, facts in heard:
        assert (facts["sender"], facts["name"], facts["using"]) == (type(backend), lock.name, "memory")
        assert facts["fence"] == lease.fence
    assert heard[0][1]["wait"] >= 0
    assert heard[1][1]["hold"] >= 0


def test_the_signal_of_a_wait(me: Actor, other: Actor, lock: Any, heard: list[Any]) -> None:
    lease = me.acquire(lock)
    heard.clear()
    with pytest.raises(LockTimeout):
        other.acquire(lock, timeout=0.05)
    ((kind, facts),) = heard
    assert (kind, facts["name"], facts["using"]) == ("timed_out", lock.name, "memory")
    assert facts["wait"] >= 0.05
    me.release(lease)


def test_signals_whose_receivers_fail_change_nothing(me: Actor, lock: Any, caplog: Any) -> None:
    def fail(**facts: Any) -> None:
        raise ZeroDivisionError("receiver")

    for signal in SIGNALS.values():
        signal.connect(fail)
    try:
        lease = me.acquire(lock)
        assert lease.held
        me.release(lease)
        assert not lease.held
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(fail)
    assert "receiver" in caplog.text


def test_a_dead_backend_is_data(backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """held_locks() shows the class of the error; its text, with an address perhaps, goes to the log."""

    def inspect(*_query: Any) -> Any:
        raise BackendUnavailable("no route to db.example:5432") from ConnectionRefusedError("db.example")

    monkeypatch.setattr(backend, "inspect", inspect)
    with caplog.at_level(logging.WARNING, "django_distlock"):
        (report,) = held_locks("memory")
    assert (report.locks, report.error) == ((), "ConnectionRefusedError")
    assert "db.example" not in repr(report)
    assert "db.example" in caplog.text


def test_a_table_or_row_lock_is_not_broken(me: Actor, lock: Any) -> None:
    lease = me.acquire(lock)
    (info,) = held_locks("memory")[0].locks
    with pytest.raises(UnsupportedOperation):
        break_lock(replace(info, details={**info.details, "kind": "relation"}))
    me.release(lease)
