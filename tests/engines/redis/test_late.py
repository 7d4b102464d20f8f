"""Requests that arrive late, tasks that go away twice, connections and threads that are not to be had."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis import connection as redis_connection
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import keys_of
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import arun
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import Own, claim_of
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


def refuse(thread: threading.Thread) -> None:
    """Thread.start() at the end of the interpreter, or at the limit of the machine."""
    raise RuntimeError("can't start new thread")


def swept(backend: RedisBackend, own: Own, held: bytes) -> bool:
    """Tick as the keepalive thread would."""
    backend.tick(monotonic())
    return not own.client.exists(held)


@contextmanager
def detained(own: Own, name: str) -> Iterator[tuple[RedisBackend, Proxy]]:
    """A backend with one connection, whose network may hold up a request for long."""
    with Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("late", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        grant = backend.try_acquire(claim_of(name), 1)
        assert grant is not None
        assert backend.release(grant)
        try:
            yield backend, proxy
        finally:
            backend.close()


@pytest.mark.parametrize("short_cut", [True, False])
def test_r7_an_acquire_that_arrives_after_the_release(own: Own, name: str, short_cut: bool) -> None:
    """It was sent again on another connection, which was faster."""
    held = keys_of(registry.entry(USING).key(name))[0]
    with detained(own, name) as (backend, proxy):
        proxy.detain(1)
        grant = backend.try_acquire(claim_of(name), 5)
        assert grant is not None
        assert (short_cut and backend.release_fast(grant)) or backend.release(grant)
        proxy.deliver()
        eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] >= 5, "it does not arrive")
        eventually(lambda: swept(backend, own, held), "it is not released")


def test_r7_an_acquire_that_arrives_after_a_refusal(own: Own, name: str) -> None:
    held = keys_of(registry.entry(USING).key(name))[0]
    with detained(own, name) as (backend, proxy):
        with own.held(name):
            proxy.detain(1)
            assert backend.try_acquire(claim_of(name), 0.7) is None
        calls = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        proxy.deliver()
        eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > calls, "it does not arrive")
        eventually(lambda: swept(backend, own, held), "it is not released")


def test_r19_a_request_that_arrives_late_does_not_shorten_the_lease(own: Own, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 5.0)  # half a second passes before it is asked again
    held = keys_of(registry.entry(USING).key(name))[0]

    def deliver() -> int:
        before = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        proxy.deliver()
        eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > before, "it does not arrive")
        return int(own.client.pttl(held))

    with detained(own, name) as (backend, proxy):
        proxy.detain(1)
        grant = backend.try_acquire(claim_of(name, 2.0), 5)
        assert grant is not None
        assert backend.extend(grant, 30)
        assert deliver() > 20_000
        proxy.detain(1)
        assert backend.extend(grant, 2)
        assert own.client.pttl(held) <= 2_000
        assert backend.extend(grant, 30)
        assert deliver() > 20_000
        assert backend.release(grant)


def test_a_process_that_cannot_start_a_thread(own: Own, name: str, monkeypatch: Any) -> None:
    """As at the end of the interpreter, or at the limit of the machine."""

    backend = RedisBackend("poor", {"url": own.url})
    grant = backend.try_acquire(claim_of(name), 1)
    assert grant is not None
    backend.pool.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert backend.release(grant)
        assert backend.try_acquire(claim_of(name + "2"), 1) is not None
    backend.close()


def test_r7_what_is_left_behind_without_a_thread_is_swept_up_later(own: Own, name: str, monkeypatch: Any) -> None:
    with Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("poor", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        grant = backend.try_acquire(claim_of(name), 1)
        assert grant is not None
        proxy.blackhole()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(BackendUnavailable):
                backend.release(grant)
        proxy.heal()
        eventually(lambda: swept(backend, own, keys_of(grant.claim.key)[0]), "still held")
        backend.close()


def test_a_task_that_goes_away_passes_its_connection_on(own: Own, monkeypatch: Any) -> None:
    monkeypatch.setattr(redis_connection, "MAX_CONNECTIONS", 1)
    pool = RedisBackend("r", {"url": own.url}).pool

    async def main() -> None:
        connection = await arun(pool.get(monotonic() + 5))
        first, second = (asyncio.create_task(arun(pool.get(monotonic() + 1))) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pool.give(connection)  # wakes the first
        first.cancel()
        pool.give(await second)

    asyncio.run(main())
    pool.close()


def test_tasks_that_take_connections_all_the_time_do_not_starve_others(own: Own, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(redis_connection, "MAX_CONNECTIONS", 4)
    done = [0] * 12
    backend = RedisBackend("r", {"url": own.url})

    async def work(number: int) -> None:
        end = monotonic() + 1.0
        while monotonic() < end:
            grant = await backend.atry_acquire(claim_of(f"{name}{number}"))
            assert grant is not None
            assert await backend.arelease(grant)
            done[number] += 1

    async def main() -> None:
        await asyncio.gather(*map(work, range(len(done))))

    asyncio.run(main())
    assert min(done) > max(done) / 3, done
    backend.close()


def test_r19_a_long_wait_does_not_eat_up_a_short_lease(own: Own, name: str) -> None:
    """The clocks may drift apart while one waits to be woken; who has a short lease asks again."""
    backend = registry.entry(USING).backend
    with own.held(name):
        threading.Timer(2.0, own.let_go).start()
        grant = backend.try_acquire(claim_of(name, 0.1), 5)
    assert grant is not None
    assert grant.valid_until - grant.acquired_at > 0.09


def test_r7_a_task_cancelled_twice_leaves_nothing(own: Own, name: str) -> None:
    """As at the end of asyncio.run, when all tasks are cancelled, those that clean up included."""
    backend = registry.entry(USING).backend
    key = keys_of(registry.entry(USING).key(name))[1]

    async def main(proxy: Proxy) -> None:
        task = asyncio.create_task(advisory_lock(name, using=USING).aacquire())
        await asyncio.to_thread(eventually, lambda: own.client.zcard(key), "there is no waiter")
        proxy.delay(0.05)
        task.cancel()
        await asyncio.sleep(0.01)

    with Proxy("127.0.0.1", own.port) as proxy:
        backend.target.url = f"redis://127.0.0.1:{proxy.port}/0"  # type: ignore[attr-defined]
        with own.held(name):
            with suppress(asyncio.CancelledError):
                asyncio.run(main(proxy))
            proxy.delay(0)
            eventually(lambda: not own.client.zcard(key), "it waits on")
            pool: Any = backend.pool  # type: ignore[attr-defined]
            eventually(lambda: pool._connections == set(pool._idle), "a connection is lost")
        registry.close()


def test_r7_a_withdrawal_that_is_cancelled_is_done_later(own: Own, name: str) -> None:
    backend = registry.entry(USING).backend
    claim = claim_of(name)
    assert backend.try_acquire(claim)

    async def main() -> None:
        backend.pool.close()  # type: ignore[attr-defined]
        task = asyncio.create_task(backend.awithdraw(claim))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    eventually(lambda: own.keys() == ["fence"], "still held")
