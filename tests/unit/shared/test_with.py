"""R24: ``with`` on one Lock object that many contexts use at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, LockNotHeld, advisory_lock, lock_all, semaphore
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor, Face


@both_faces
def test_r7_r16_r24_nested_entries_of_one_context_close_from_the_inside(me: Actor, other: Actor, lock: Any) -> None:
    """The error of a body leaves nothing held, and a lease is a context manager, too."""
    outer, inner = me.enter(lock), me.enter(lock)
    me.exit(lock)
    assert (outer.held, inner.held) == (True, False)
    assert other.try_acquire(lock) is None
    assert not me.exit(lock, KeyError("the body's own"))
    assert not outer.held
    lease = other.acquire(lock, timeout=0)
    assert other.enter(lease) is lease
    other.exit(lease)
    assert not lease.held
    me.release(me.acquire(lock, timeout=0))


def test_r24_each_exit_closes_its_own_entry_and_one_elsewhere_none_of_several(
    face: Face, using: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = semaphore(name, 2, using=using)
    first, second, third = face.actors(3)
    mine, theirs = first.enter(pool), second.enter(pool)
    with pytest.raises(LockNotHeld, match="was not entered by this context"):
        third.exit(pool)
    third.exit(pool, KeyError("passes"))
    assert "stays held: one of its 2 blocks was left with KeyError" in caplog.text
    assert (mine.held, theirs.held) == (True, True)
    first.exit(pool)
    assert (mine.held, theirs.held) == (False, True)
    third.exit(pool)  # the only one that is open
    assert not theirs.held


@both_faces
@pytest.mark.parametrize("recipe", [advisory_lock, lambda name, using: lock_all([name], using=using)])
def test_r24_an_exit_without_an_entry(me: Actor, using: str, name: str, recipe: Any) -> None:
    lock = recipe(name, using=using)
    with pytest.raises(LockNotHeld, match="was not entered by this context"):
        me.exit(lock)
    me.enter(lock)
    me.exit(lock)
    with pytest.raises(LockNotHeld):
        me.exit(lock)
    me.exit(lock, KeyError("passes"))


def test_r24_a_failed_entry_opens_nothing(me: Actor, other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using, timeout=0)
    me.enter(lock)
    for _ in range(2):
        with pytest.raises(LockNotAcquired):
            other.enter(lock)
    me.exit(lock)
    with pytest.raises(LockNotHeld):
        other.exit(lock)


def exit_with(pool: Any, at: int, meanwhile: Callable[[], object]) -> None:
    """Leave a block of ``pool``; other threads run at step ``at`` of the search for its entry."""
    steps = 0

    def look(frame: Any, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code is not pool._block.__func__.__code__:
            return None
        if event == "line":
            steps += 1
            if steps == at:
                meanwhile()
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        pool.__exit__(None, None, None)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("at", range(1, 8))
def test_r24_an_exit_closes_its_own_entry_while_others_come_and_go(using: str, name: str, at: int) -> None:
    pool = semaphore(name, 3, using=using)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        came: list[Any] = []

        def come_and_go() -> None:
            one.submit(pool.__exit__, None, None, None).result()
            came.append(two.submit(pool.__enter__).result())

        mine = pool.__enter__()
        one.submit(pool.__enter__).result()
        exit_with(pool, at, come_and_go)
        assert not mine.held
        if not came:
            come_and_go()
        assert came[0].held
        two.submit(pool.__exit__, None, None, None).result()
