"""What held_locks() shows of a lock: its holder, its end, who waits; and locked(), who is held now, asked without
taking anything. Semaphores and servers that do not answer are in tests/unit/shared and tests/engines."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import django_distlock
from django_distlock import advisory_lock
from tests.conftest import eventually
from tests.contract.actors import PATIENCE, Actor
from tests.contract.conftest import across_processes, both_faces, sharing
from tests.contract.watching import listed, waiting_at_the_engine

if TYPE_CHECKING:
    from django_distlock.records import LockInfo


@across_processes
def test_a_lock_of_another_process_is_listed_with_its_waiters(
    me: Actor, rival: Any, using: str, name: str, backend: Any
) -> None:
    held = rival.acquire(using, name, **({"ttl": 300} if backend.supports_ttl else {}))
    (info,) = listed(using, name)
    assert (info.backend, info.name, info.shared) == (using, name, False)
    assert info.key
    assert info.holder
    assert not info.waiters
    if backend.supports_fencing:
        assert info.fence == rival.get(held, "fence")
    if backend.supports_ttl:
        now = datetime.now(UTC)
        assert timedelta(seconds=200) < info.expires_at - now < timedelta(seconds=301)
        assert abs(info.acquired_at - now) < timedelta(seconds=100)
    waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    seen: list[LockInfo] = []
    eventually(lambda: seen.extend(listed(using, name)) or seen[-1].waiters == 1, "no waiter is listed")
    who = "".join(seen[-1].waiting)
    # MySQL names only the account and its connection
    assert f":{os.getpid()}" in who or (backend.alias == "mysql" and "@" in who)
    rival.release(held)
    lease = waiting.result(PATIENCE)
    eventually(lambda: waiting_at_the_engine(using, name) == 0, "a waiter that has gone is listed")
    me.release(lease)


def locked(me: Actor, names: list[Any], using: str) -> set[Any]:
    found: set[Any] = me.start(django_distlock, "locked", names, using=using).result(PATIENCE)
    return found


@both_faces
def test_who_is_held_here_elsewhere_and_nowhere(
    me: Actor, other: Actor, rival: Any, using: str, name: str, backend: Any
) -> None:
    """The caller's own lock counts, too; and nobody is in the way of who acquires next."""
    names = [f"{name} {who}" for who in ("mine", "other's", "rival's", "free")]
    locks = [advisory_lock(each, using=using) for each in names]
    assert locked(me, names, using) == locked(me, [], using) == set()
    leases = [(me, me.acquire(locks[0])), (me, me.acquire(locks[0])), (other, other.acquire(locks[1]))]
    held = rival.acquire(using, names[2])
    assert locked(me, names, using) == set(names[:3])
    assert locked(me, locks, "memory") == set(locks[:3]), "a Lock has its own alias"
    assert [me.start(lock, "locked").result(PATIENCE) for lock in locks] == [True, True, True, False]
    rival.release(held)
    for actor, lease in leases:
        actor.release(lease)
    assert locked(me, names, using) == set()
    for lock in locks:
        me.release(me.acquire(lock, timeout=0))


@sharing
def test_a_lock_of_readers_is_held_and_listed_as_shared(me: Actor, other: Actor, using: str, name: str) -> None:
    leases = [(actor, actor.acquire(advisory_lock(name, using=using, shared=True))) for actor in (me, other)]
    assert {info.shared for info in listed(using, name)} == {True}
    for actor, lease in leases:
        assert advisory_lock(name, using=using).locked()
        actor.release(lease)
    assert not advisory_lock(name, using=using).locked()
