"""All waiters of a process listen on one connection, which one of those that wait reads for the others."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from tests.conftest import eventually
from tests.engines.redis.server import claim_of, queued

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import Grant
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
MANY, ROUNDS = 100, 300


@pytest.fixture
def backend(own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisBackend]:
    """Its waiters hear of a hand-over, or hear nothing: they do not ask again."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 60.0)
    backend = RedisBackend("listening", {"url": own.url})
    yield backend
    backend.close()


def all_wait(own: Own, *names: str) -> bool:
    return all(queued(own.client, name) for name in names)


def handed(own: Own, held: Grant, waiting: Any) -> Grant:
    assert own.holder.release(held)
    return waiting.result(20)  # type: ignore[no-any-return]


def test_r4_waiters_of_any_number_of_names_queue_at_the_server(own: Own, backend: RedisBackend, name: str) -> None:
    """On few connections: none waits in the process for a place."""
    names = [f"{name}{number}" for number in range(MANY)]
    holds = [own.hold(each) for each in names]
    before = len(own.client.client_list())

    async def main() -> None:
        tasks = [asyncio.create_task(backend.atry_acquire(claim_of(each), 30)) for each in names]
        await asyncio.to_thread(eventually, lambda: all_wait(own, *names), "not all are in the queue")
        assert len(own.client.client_list()) - before <= 16 + 1
        for held in holds:
            await asyncio.to_thread(own.holder.release, held)
        grants = await asyncio.gather(*tasks)
        for grant in grants:
            assert await backend.arelease(grant)

    asyncio.run(main())


def test_when_the_thread_that_reads_leaves_another_one_reads(own: Own, backend: RedisBackend, name: str) -> None:
    names = [f"{name}{number}" for number in range(3)]
    holds = [own.hold(each) for each in names]
    with ThreadPoolExecutor(3) as pool:
        reads = pool.submit(backend.try_acquire, claim_of(names[0]), 1.0)
        eventually(lambda: all_wait(own, names[0]), "it does not wait")
        follow = [pool.submit(backend.try_acquire, claim_of(each), 30) for each in names[1:]]
        eventually(lambda: all_wait(own, *names[1:]), "they do not wait")
        assert reads.result(20) is None
        for held, waiting in zip(holds[1:], follow, strict=True):
            assert backend.release(handed(own, held, waiting))
        assert own.holder.release(holds[0])


def test_a_message_that_another_one_has_read_wakes_its_waiter(own: Own, backend: RedisBackend, name: str) -> None:
    """An event loop may be faster than the thread that polls the same connection for its own message."""
    other = f"{name} other"
    held = own.hold(other)
    with ThreadPoolExecutor(2) as pool:
        task = pool.submit(lambda: asyncio.run(backend.atry_acquire(claim_of(other), 300)))
        eventually(lambda: all_wait(own, other), "it does not wait")
        for _ in range(ROUNDS):
            mine = own.hold(name)
            waiting = pool.submit(backend.try_acquire, claim_of(name), 30)
            eventually(lambda: all_wait(own, name), "it does not wait", pause=0.0)
            assert backend.release(handed(own, mine, waiting))
        assert backend.release(handed(own, held, task))


def test_r23_event_loops_that_were_closed_leave_no_files(own: Own, backend: RedisBackend, name: str) -> None:
    """As async_to_sync makes one for each call, while a thread keeps the connection in use."""
    other = f"{name} other"
    held = own.hold(other)
    with ThreadPoolExecutor(1) as pool, own.held(name):
        waiting = pool.submit(backend.try_acquire, claim_of(other), 60)
        eventually(lambda: all_wait(own, other), "it does not wait")
        asyncio.run(backend.atry_acquire(claim_of(name), 0.1))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert asyncio.run(backend.atry_acquire(claim_of(name), 0.05)) is None
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        assert backend.release(handed(own, held, waiting))
