"""R11: a lock inside a transaction that lives on a dedicated session takes the engine's fast path, in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.db import connections, transaction

from django_distlock import advisory_lock
from django_distlock.backends.begin_listener import BeginListener
from django_distlock.manager.registry import registry

if TYPE_CHECKING:
    from tests.manager.transactions.world import World


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_r11_the_fast_path_is_taken_inside_a_transaction(make_world: Any, end: str) -> None:
    world: World = make_world("mysql", "mariadb")
    world.lock().acquire().release()  # opens what is opened at the first lock
    backend = registry.entry(world.using).backend
    fast = mock.patch.object(backend, "acquire_fast", side_effect=backend.acquire_fast)
    flow = mock.patch.object(backend, "try_acquire", side_effect=backend.try_acquire)
    late = mock.patch.object(backend, "release_fast", side_effect=backend.release_fast)
    slow = mock.patch.object(backend, "release", side_effect=backend.release)
    with fast as fast_path, flow as flows, late as late_path, slow as releases:
        with transaction.atomic(world.alias):
            with world.lock():
                world.write()
            assert not late_path.called, "released before the transaction has ended"
            world.still_inside()
            transaction.set_rollback(end == "rollback", using=world.alias)
        assert (fast_path.call_count, flows.call_count) == (1, 0)
        assert (late_path.call_count, releases.call_count) == (1, 0)
    world.check_rival_came_in(int(end == "commit"))


def test_r11_statements_are_not_read_under_a_lock_that_the_transaction_keeps(make_world: Any) -> None:
    """A BEGIN by SQL is looked for only where a release could come before its COMMIT."""
    world: World = make_world("mysql", "mariadb")
    wrappers = connections["mariadb"].execute_wrappers
    with transaction.atomic("mariadb"), world.lock():
        assert not wrappers
    with advisory_lock(world.name, using="mysql"):
        assert [type(wrapper) for wrapper in wrappers] == [BeginListener]
    assert not wrappers
