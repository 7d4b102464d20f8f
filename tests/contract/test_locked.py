"""locked(): who is held now, asked without taking anything. Semaphores and servers that do not answer are in
tests/unit/shared and tests/engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django_distlock
from django_distlock import advisory_lock
from tests.conftest import PATIENCE
from tests.contract.conftest import both_faces, sharing

if TYPE_CHECKING:
    from tests.contract.actors import Actor


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
def test_a_lock_of_readers_is_held(me: Actor, other: Actor, using: str, name: str) -> None:
    leases = [(actor, actor.acquire(advisory_lock(name, using=using, shared=True))) for actor in (me, other)]
    for actor, lease in leases:
        assert advisory_lock(name, using=using).locked()
        actor.release(lease)
    assert not advisory_lock(name, using=using).locked()
