"""lock_all: several locks at once, all or nothing, within one timeout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, LockNotAcquired, LockTimeout, advisory_lock, lock_all
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.actors import Actor


def _names(name: str) -> list[str]:
    return [f"{name}{letter}" for letter in "abc"]


def test_all_of_them_are_held_and_given_back(me: Actor, other: Actor, using: str, name: str) -> None:
    names = _names(name)
    leases = me.acquire(lock_all(names, using=using))
    assert len(leases) == 3
    assert [lease.name for lease in leases] == names
    assert leases[names[1]].held
    with pytest.raises(KeyError):
        leases["another"]
    leases.ensure_held()
    assert not leases.lost
    for each in names:
        assert other.try_acquire(advisory_lock(each, using=using)) is None
    me.release(leases)
    me.release(leases)
    other.release(other.acquire(lock_all(names, using=using), timeout=0))


def test_one_that_is_busy_leaves_none_held(me: Actor, rival: Any, using: str, name: str) -> None:
    names = _names(name)
    for busy in names:
        held = rival.acquire(using, busy)
        assert me.try_acquire(lock_all(names, using=using)) is None
        with pytest.raises(LockNotAcquired, match=r"^One of the locks .* is held by another caller") as error:
            me.acquire(lock_all(names, using=using), timeout=0)
        assert type(error.value) is LockNotAcquired
        for each in set(names) - {busy}:
            rival.release(rival.acquire(using, each, timeout=0))
        rival.release(held)


def test_one_timeout_for_all(me: Actor, rival: Any, using: str, name: str) -> None:
    """R5: not one for each."""
    names = _names(name)
    held = [rival.acquire(using, each) for each in names]
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        me.acquire(lock_all(names, using=using, timeout=0.5))
    within(time.monotonic() - began, 0.55, least=0.5)
    for number in held:
        rival.release(number)


def test_with_blocks_and_names_twice(me: Actor, other: Actor, using: str, name: str) -> None:
    names = _names(name)
    several = lock_all([*names, names[0]], using=using)
    assert len(me.enter(several)) == 3
    assert other.try_acquire(several) is None
    me.exit(several)
    other.release(other.acquire(several, timeout=0))


def test_a_set_inside_a_set_is_reentry(me: Actor, other: Actor, using: str, name: str) -> None:
    names = _names(name)
    outer = me.acquire(lock_all(names, using=using))
    inner = me.acquire(lock_all(names[:2], using=using), timeout=0)
    me.release(outer)
    assert other.try_acquire(advisory_lock(names[0], using=using)) is None
    other.release(other.acquire(advisory_lock(names[2], using=using), timeout=0))
    me.release(inner)


def test_the_others_are_given_back_although_one_was_lost(
    me: Actor, other: Actor, using: str, name: str, take_away: Callable[[str], None]
) -> None:
    names = _names(name)
    leases = me.acquire(lock_all(names, using=using))
    take_away(names[1])
    with pytest.raises(LockLost):
        me.release(leases)
    assert leases.lost
    other.release(other.acquire(lock_all(names, using=using), timeout=2))


def test_an_exclusive_one_covers_a_shared_one(me: Actor, other: Actor, using: str, name: str, backend: Any) -> None:
    if not backend.supports_shared:
        return
    reader, writer = (advisory_lock(name, using=using, shared=shared) for shared in (True, False))
    for locks in ([reader, writer], [writer, reader]):
        leases = me.acquire(lock_all(locks))
        assert [lease.shared for lease in leases] == [False]
        assert other.try_acquire(reader) is None
        me.release(leases)
    together = [actor.acquire(lock_all([name], using=using, shared=True), timeout=0) for actor in (me, other)]
    me.release(together[0])
    other.release(together[1])


def test_one_name_on_two_aliases(databases: None) -> None:
    """The leases of lock_all: a name alone does not say which of the two."""
    both = [advisory_lock("one name", using=alias) for alias in ("memory", "leasetable")]
    with lock_all([*both, advisory_lock("another", using="memory")]) as leases:
        with pytest.raises(ValueError, match=r"leases\['leasetable', 'one name'\] or leases\['memory', 'one name'\]"):
            leases["one name"]
        assert [leases[alias, "one name"].using for alias in ("memory", "leasetable")] == ["memory", "leasetable"]
        assert leases["another"] is leases["memory", "another"]
        for missing in ("one", ("leasetable", "another")):
            with pytest.raises(KeyError):
                leases[missing]
