"""One walk through the life of a lock, for every engine, in threads and in tasks: take, enter again, be refused, wait,
time out, release. What is cancelled is in test_cancellation.py, what is lost in test_holding.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock
from tests.contract.actors import PATIENCE
from tests.contract.conftest import both_faces
from tests.contract.rivals import RivalError
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from tests.contract.actors import Actor


@both_faces
def test_r1_r2_r5_r6_the_life_of_a_lock(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    leases = [me.acquire(lock), me.acquire(lock, timeout=0), me.try_acquire(lock)]
    for lease in leases:
        assert lease.held
        assert other.try_acquire(lock) is None
        with pytest.raises(LockNotAcquired, match=r"is held by another caller\.$") as busy:
            other.acquire(lock, timeout=0)
        assert type(busy.value) is LockNotAcquired
        with pytest.raises(RivalError) as refused:
            rival.acquire(using, name, timeout=0)
        assert refused.value.kind == "LockNotAcquired"
        me.release(lease)
    theirs = rival.acquire(using, name, timeout=0)
    assert me.try_acquire(lock) is None
    with pytest.raises(LockTimeout, match=r"after 1 s"):
        me.acquire(lock, timeout=1)
    waiting = me.start(lock, "acquire", timeout=None)
    somebody_waits(name)
    assert not waiting.done()
    rival.release(theirs)
    me.release(waiting.result(PATIENCE))
    rival.release(rival.acquire(using, name, timeout=0))
