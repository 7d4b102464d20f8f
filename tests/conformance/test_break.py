"""An operator takes a lock away from the holder that he was shown, and from nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import UnsupportedOperation, advisory_lock, break_lock
from django_distlock.signals import lock_broken
from tests.conformance.rivals import RivalError
from tests.conformance.watching import listed
from tests.conftest import eventually

if TYPE_CHECKING:
    from tests.conformance.actors import Actor

# After this a session without a lock is closed, which would tell the victim as well; seconds.
IDLE = 5.0


def test_r17_the_victim_is_told_and_its_successor_is_left_alone(
    me: Actor, rival: Any, using: str, name: str, backend: Any
) -> None:
    """The victim does nothing meanwhile. What was shown before the change of hands breaks nothing after it."""
    heard: list[dict[str, Any]] = []

    def hear(**facts: Any) -> None:
        heard.append(facts)

    lock_broken.connect(hear)
    try:
        victim = rival.call("acquire_for", using, name, 1.0) if backend.supports_ttl else rival.acquire(using, name)
        (shown,) = listed(using, name)
        assert break_lock(shown, reason="a test") is True
    finally:
        lock_broken.disconnect(hear)
    assert [(facts["name"], facts["using"], facts["reason"]) for facts in heard] == [(name, using, "a test")]
    lease = me.acquire(advisory_lock(name, using=using), timeout=5)
    assert break_lock(shown) is False
    eventually(lambda: rival.call("lost", victim), "the victim is not told", patience=IDLE - 1)
    with pytest.raises(RivalError, match="LockLost"):
        rival.release(victim)
    assert me.run(lease.ensure_held) is None
    (now,) = listed(using, name)
    assert (now.holder, now.fence, now.details) != (shown.holder, shown.fence, shown.details)
    me.release(lease)
    assert break_lock(now) is False


def test_what_no_holder_has_breaks_nothing(me: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    (info,) = listed(using, name)
    wrong = dict.fromkeys(info.details, "1")
    for other in (
        replace(info, details=wrong, fence=(info.fence or 0) + 1),
        replace(info, details={}, fence=None),
        replace(info, key="00" * 32, fence=(info.fence or 0) + 1),
    ):
        assert break_lock(other) is False
    assert me.run(lease.ensure_held) is None
    me.release(lease)


def test_a_table_or_row_lock_is_refused(me: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    (info,) = listed(using, name)
    with pytest.raises(UnsupportedOperation):
        break_lock(replace(info, details={**info.details, "kind": "relation"}))
    me.release(lease)
