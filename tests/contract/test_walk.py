"""One walk through the life of a lock, for every engine, in threads and in tasks: take, enter again, be refused, wait,
time out, release. What is cancelled is in test_cancellation.py, what is lost in test_holding.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock
from tests.contract.actors import PATIENCE, Actor
from tests.contract.conftest import both_faces
from tests.contract.rivals import RivalError
from tests.contract.watching import somebody_waits

ENGINE_CALLS = (
    "try_acquire",
    "atry_acquire",
    "release",
    "arelease",
    "extend",
)


@pytest.fixture
def asked(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine was asked for what."""
    calls: Counter[str] = Counter()

    def spy(method: str) -> Any:
        original = getattr(backend, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[method] += 1
            return original(*args, **kwargs)

        return call

    for method in ENGINE_CALLS:
        monkeypatch.setattr(backend, method, spy(method))
    return calls


@both_faces
def test_r1_r2_r5_r6_the_life_of_a_lock(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    leases = [me.acquire(lock), me.acquire(advisory_lock(name, using=using), timeout=0), me.try_acquire(lock)]
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


@both_faces
def test_r2_reentry_costs_no_round_trip(me: Actor, using: str, name: str, backend: Any, asked: Counter[str]) -> None:
    lock = advisory_lock(name, using=using)
    outer = me.acquire(lock)
    before = Counter(asked)
    assert before
    inner = me.acquire(lock)
    assert outer.valid_until == inner.valid_until
    if backend.supports_fencing:
        assert outer.fence == inner.fence
    me.release(inner)
    me.enter(lock)
    me.exit(lock)
    assert asked == before
    me.release(outer)
    assert asked != before
