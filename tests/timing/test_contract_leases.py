"""R18 to R20 by the clock: leases that are renewed on schedule, and leases that end. Each engine renews; when it is
time to, and what the end of a lease means, is decided in the shared layer, and shown on memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock, lock_all
from django_distlock.concurrency import clock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.contract.conftest import face, me, other, residents, rival, with_ttl
from tests.contract.rivals import RivalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor

__all__ = ["face", "me", "other", "residents", "rival"]
pytestmark = pytest.mark.alone
# Of a lease that has to be renewed, which has two thirds of this for it: a machine stands still for 0.2 s at times.
RENEWED = 1.2


@with_ttl
def test_r20_leases_are_renewed_while_they_are_held(me: Actor, rival: Any, using: str, name: str) -> None:
    """Twenty of one process, by one thread."""
    backend: Any = registry.entry(using).backend
    leases = [me.acquire(advisory_lock(f"{name}{number}", using=using, ttl=2 * RENEWED)) for number in range(20)]
    fences = [lease.fence for lease in leases if backend.supports_fencing]
    end = max(lease.valid_until for lease in leases)
    eventually(lambda: clock.now() > end + 0.05, "time stands still")
    assert all(lease.held for lease in leases)
    assert [lease.fence for lease in leases if backend.supports_fencing] == fences
    assert sum(thread.name == "distlock-keepalive" for thread in threading.enumerate()) == 1
    with pytest.raises(RivalError, match="LockNotAcquired"):
        rival.acquire(using, f"{name}0", timeout=0)
    for lease in leases:
        me.release(lease)
    rival.release(rival.acquire(using, f"{name}0", timeout=0))


@pytest.fixture
def lock(name: str) -> Any:
    return advisory_lock(name, using="memory", ttl=RENEWED)


@pytest.fixture
def memory() -> Any:
    return registry.entry("memory").backend


def refuse(*args: Any) -> Any:
    raise OSError("no route to the server")


def renewed(lease: Any) -> None:
    first = lease.valid_until
    eventually(lambda: clock.now() > first + 0.1, "time stands still")
    assert lease.held


def test_r20_also_after_extend_to_a_shorter_time(me: Actor, name: str) -> None:
    """The keepalive thread, asleep until the renewal of a long lease, is told."""
    lease = me.acquire(advisory_lock(name, using="memory", ttl=30))
    threading.Event().wait(0.1)  # the thread has looked and sleeps
    me.extend(lease, RENEWED)
    assert lease.valid_until < clock.now() + RENEWED
    renewed(lease)
    me.release(lease)


def test_r16_also_for_a_task_that_has_ended(lock: Any) -> None:
    """What asyncio.wait_for leaves before Python 3.12; and for a loop that was closed."""

    async def main() -> Any:
        return await asyncio.create_task(lock.aacquire())

    lease = asyncio.run(main())
    renewed(lease)
    lease.release()


@pytest.mark.parametrize("kind", ["lock", "set"])
def test_r20_not_for_nobody(name: str, lock: Any, kind: str) -> None:
    """A task that forgot to release must not lock everybody out for ever. (Of a dead thread: tests/unit.)"""

    async def forget() -> None:
        await asyncio.create_task((lock_all([lock]) if kind == "set" else lock).aacquire())

    asyncio.run(forget())
    gc.collect()
    with advisory_lock(name, using="memory", timeout=PATIENCE):
        assert len(lock_table.held()) == 1


def test_r20_unreachable_is_not_lost(me: Actor, name: str, memory: Any, monkeypatch: Any, caplog: Any) -> None:
    """A renewal that fails is tried again until valid_until."""
    failures: list[int] = []
    original = memory.extend

    def extend(*args: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            refuse()
        return original(*args)

    monkeypatch.setattr(memory, "extend", extend)
    lease = me.acquire(advisory_lock(name, using="memory", ttl=3))
    first = lease.valid_until
    with caplog.at_level(logging.WARNING, "django_distlock"):
        eventually(lambda: lease.valid_until > first, "it was not renewed")
    assert lease.held
    assert caplog.text.count("could not be renewed: no route to the server") == 2
    me.release(lease)


def test_r18_lost_at_valid_until_if_it_cannot_be_renewed(me: Actor, lock: Any, memory: Any, monkeypatch: Any) -> None:
    """0 s after: the lease asks the clock, not the keepalive thread."""
    monkeypatch.setattr(memory, "extend", refuse)
    lease = me.acquire(lock)
    end = lease.valid_until
    while clock.now() < end:
        assert lease.held or clock.now() >= end
    assert lease.lost
    with pytest.raises(LockLost, match=r"\(expired\)"):
        lease.ensure_held()
    with pytest.raises(LockLost):
        me.release(lease)


def over(grant: Any) -> None:
    """Until the time of a grant is over by the clocks of both sides."""
    ends = grant.claim.ttl + grant.acquired_at
    eventually(lambda: clock.now() > max(grant.valid_until, ends) + 0.05, "it does not end")


def test_r20_a_late_renewal_prolongs_nothing(me: Actor, other: Actor, lock: Any, memory: Any, monkeypatch: Any) -> None:
    """The engine has prolonged it, the answer comes after its end: nobody has it then, so it is given back."""
    original: Callable[..., Any] = memory.extend

    def extend(grant: Any, ttl: float) -> Any:
        extended = original(grant, 300)
        over(grant)
        return extended

    monkeypatch.setattr(memory, "extend", extend)
    lease = me.acquire(lock)
    eventually(lambda: lease.lost, "a late renewal revived it")
    other.release(other.acquire(lock, timeout=PATIENCE))
    with pytest.raises(LockLost, match=r"\(expired\)"):
        me.release(lease)
