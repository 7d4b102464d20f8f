"""R7, R8 and R9: several locks at once are all or nothing, and callers of the same set cannot deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock, lock_all
from tests.contract.conftest import across_processes, those

if TYPE_CHECKING:
    from tests.contract.actors import Actor


def test_r7_one_that_is_busy_leaves_none_held(me: Actor, rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    for busy in names:
        held = rival.acquire(using, busy)
        assert me.try_acquire(lock_all(names, using=using)) is None
        with pytest.raises(LockNotAcquired, match=r"^One of the locks .* is held by another caller") as error:
            me.acquire(lock_all(names, using=using), timeout=0)
        assert type(error.value) is LockNotAcquired
        for each in set(names) - {busy}:
            rival.release(rival.acquire(using, each, timeout=0))
        rival.release(held)


@those(lambda entry: entry.using in ("leasetable", "postgres", "mysql", "redis"))
def test_r8_a_circle_across_processes_ends_at_the_deadline(me: Actor, rival: Any, using: str, name: str) -> None:
    a, b = f"{name}a", f"{name}b"
    mine = me.acquire(advisory_lock(a, using=using))
    theirs = rival.acquire(using, b)
    waiting = rival.start_acquire(using, a)
    with pytest.raises(LockTimeout):
        me.acquire(advisory_lock(b, using=using), timeout=1)
    assert mine.held
    me.release(mine)
    rival.release(rival.result(waiting))
    rival.release(theirs)


@across_processes
def test_r9_processes_with_the_same_set_do_not_deadlock(rival: Any, second_rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    tokens = [
        (rival, rival.start("sets", using, names, 10)),
        (second_rival, second_rival.start("sets", using, names[::-1], 10)),
        (rival, rival.start("sets", using, names[1:] + names[:1], 10)),
    ]
    for somebody, token in tokens:
        assert somebody.result(token) == 10
