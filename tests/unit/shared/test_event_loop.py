"""A sync call on the thread of an event loop is refused: it would wait for what only that loop can do."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_distlock import advisory_lock, lock_all, locked, semaphore
from django_distlock.manager.lock_table import lock_table
from tests.conftest import PATIENCE, eventually


def test_sync_calls_are_refused_and_name_the_async_one(using: str, name: str) -> None:
    async def main() -> None:
        recipes = (advisory_lock(name, using=using), lock_all([name], using=using), semaphore(name, 2, using=using))
        refused = [
            (advisory_lock(name, using=using).locked, "await lock.alocked()"),
            (partial(locked, [name], using=using), "await alocked(...)"),
        ]
        for lock in recipes:
            refused += [(call, "await lock.aacquire()") for call in (lock.acquire, lock.__enter__)]
            refused += [(lock.try_acquire, "await lock.atry_acquire()"), (lock(lambda: None), "sync_to_async")]
        for call, instead in refused:
            with pytest.raises(SynchronousOnlyOperation, match="would block the event loop") as error:
                call()
            assert instead in str(error.value)
        for lock in recipes:
            lease: Any = await lock.aacquire()
            with pytest.raises(SynchronousOnlyOperation, match="`async with`"):
                lease.__enter__()
            lease.ensure_held()
            lease.release()  # never refused: the lock would stay held
            async with asyncio.timeout(PATIENCE):
                again = await lock.aacquire()
            await again.arelease()

    asyncio.run(main())


def test_a_notebook_may_ask_for_it(lock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the ORM; what is not contended works there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def main() -> None:
        with lock as lease:
            lease.ensure_held()
        (await lock.aacquire()).release()

    asyncio.run(main())
    # where that takes a request, a thread sees to it
    eventually(lambda: not lock_table.all(), "it is not released")
