"""R16 and R20 for a task that has ended: the Lease owns the lock, for as long as anybody has it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from django_distlock import advisory_lock, lock_all
from django_distlock.manager.lock_table import lock_table
from tests.conformance.conftest import with_ttl

pytestmark = with_ttl
SHORT = 1.2
# A lease that nobody renews has ended by then. The first renewal is due after 0.4 s, and one at 1.2 s comes too late.
OVER = 1.5 * SHORT


async def acquired_by_a_task_of_its_own(lock: Any) -> Any:
    """What asyncio.wait_for does before Python 3.12."""
    return await asyncio.create_task(lock.aacquire(timeout=5))


def test_r16_a_lease_outlives_the_task_that_acquired_it(using: str, name: str) -> None:
    async def main() -> None:
        lease = await acquired_by_a_task_of_its_own(advisory_lock(name, using=using, ttl=SHORT))
        await asyncio.sleep(OVER)
        lease.ensure_held()
        assert await advisory_lock(name, using=using).atry_acquire() is None, "another context"
        await lease.arelease()

    asyncio.run(main())


def test_r16_a_set_of_leases_outlives_it_as_well(using: str, name: str) -> None:
    async def main() -> None:
        leases = await acquired_by_a_task_of_its_own(lock_all([name, f"{name}2"], using=using, ttl=SHORT))
        await asyncio.sleep(OVER)
        leases.ensure_held()
        await leases.arelease()

    asyncio.run(main())


def test_r16_a_lease_outlives_its_event_loop(using: str, name: str) -> None:
    lease = asyncio.run(advisory_lock(name, using=using, ttl=SHORT).aacquire())
    asyncio.run(asyncio.sleep(OVER))
    lease.ensure_held()
    lease.release()


@pytest.mark.parametrize("kind", ["lock", "set"])
def test_r20_a_lease_that_nobody_has_any_more_is_not_renewed(using: str, name: str, kind: str) -> None:
    """A task that forgot to release must not lock everybody out for ever."""

    async def main() -> None:
        lock: Any = (
            lock_all([name], using=using, ttl=SHORT) if kind == "set" else advisory_lock(name, using=using, ttl=SHORT)
        )
        await acquired_by_a_task_of_its_own(lock)
        gc.collect()
        async with advisory_lock(name, using=using, timeout=5):
            assert len(lock_table.held()) == 1

    asyncio.run(main())
