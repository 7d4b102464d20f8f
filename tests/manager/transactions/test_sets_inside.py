"""R7, R9 inside a transaction: a set of locks is all or nothing, at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django.db import connections, transaction

from django_distlock import advisory_lock, lock_all
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out

if TYPE_CHECKING:
    from tests.manager.transactions.world import World


def test_r7_set_that_fails_inside_atomic_keeps_nothing(one_world: World) -> None:
    """All or nothing, at once: what a failed ``lock_all`` had taken is not kept until the end of the transaction."""
    world = one_world
    names = [world.name + "-a", world.name + "-z"]
    world.rival.say(["wait", world.using, names[1], world.alias])
    assert world.rival.hear() == "waiting"
    world.rival.hear()
    thread_says: list[bool] = []

    def another_thread() -> None:
        try:
            lease = advisory_lock(names[0], using=world.using).try_acquire()
            thread_says.append(lease is not None)
            if lease is not None:
                lease.release()
        finally:
            connections.close_all()

    try:
        with transaction.atomic(world.alias):
            assert lock_all(names, using=world.using).try_acquire() is None
            thread = threading.Thread(target=another_thread)
            thread.start()
            thread.join()
    finally:
        world.rival.say(["release"])
        world.rival.hear()
    assert thread_says == [True]


def test_r7_set_that_fails_gives_back_only_what_it_has_taken(one_world: World) -> None:
    """What the context held or kept before the attempt stays."""
    world = one_world
    kept, held, fresh, busy = (f"{world.name}-{n}" for n in range(4))
    world.rival.say(["wait", world.using, busy, world.alias])
    assert world.rival.hear() == "waiting"
    world.rival.hear()
    try:
        with transaction.atomic(world.alias):
            with advisory_lock(kept, using=world.using):
                world.write()
            lease = advisory_lock(held, using=world.using).acquire()
            for _ in range(2):
                assert lock_all([kept, held, fresh, busy], using=world.using).try_acquire() is None
                refused = [is_out(world.rival, world.using, name) for name in (kept, held, fresh)]
                assert refused == [True, True, False]
            lease.ensure_held()
            with advisory_lock(kept, using=world.using):
                world.write()
            assert lock_all([kept, held, fresh], using=world.using).acquire(timeout=0)[fresh].held
    finally:
        world.rival.say(["release"])
        world.rival.hear()
    assert rows.count(world.alias, world.name) == 2
    assert not [name for name in (kept, held, fresh) if is_out(world.rival, world.using, name)]
    world.check_connection_is_clean()
