"""A Redis server without memory, a database server without connections, and a disk without room: callers are refused
with the reason, holders keep what they have, and what is released is free."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError
from redis.exceptions import OutOfMemoryError

from django_distlock import BackendUnavailable, advisory_lock, held_locks, lock_all, semaphore
from django_distlock.backends.base import TICK
from django_distlock.backends.leasetable.server import LeaseSession
from django_distlock.backends.redis.target import Target
from django_distlock.backends.sessions import pool
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import Own, waiters
from tests.support.processes import Child

pytestmark = pytest.mark.usefixtures("databases")


@contextlib.contextmanager
def no_memory(own: Own) -> Any:
    own.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):  # what a bare driver gets
            own.client.set("bare", "token", nx=True, px=1000)
        yield
    finally:
        own.client.config_set("maxmemory", 0)


def listed(using: str) -> list[str | None]:
    (report,) = held_locks(using)
    assert not report.error
    return [info.name for info in report.locks]


@pytest.fixture
def nodes(databases: None, alias: Any, tmp_path: Any) -> Any:
    """The three of the alias "redlock"."""
    with contextlib.ExitStack() as stack:
        owns = [stack.enter_context(Own(tmp_path / str(number))) for number in range(3)]
        alias("redlock", nodes=[own.url for own in owns])
        yield owns
        registry.close()


def renewed_and_released(lease: Any, using: str, *full: Own) -> None:
    """Otherwise a server that is full for the length of a TTL would take every lock away."""
    with contextlib.ExitStack() as stack:
        for own in full:
            stack.enter_context(no_memory(own))
        for each in getattr(lease, "leases", [lease]):
            before = each.valid_until
            each.extend(40)
            assert each.valid_until > before + 10
        with pytest.raises(BackendUnavailable, match=r"maxmemory|OutOfMemoryError"):
            advisory_lock("another", using=using, timeout=2).acquire()
        lease.release()
        eventually(lambda: not listed(using), "still held")


@pytest.mark.parametrize("using", ["redis", "redlock"])
def test_r6_without_a_thread_an_event_loop_does_not_connect(
    own: Own, nodes: Any, alias: Any, name: str, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand still for as long as a server takes. A release that finds no connection is done all the same."""
    alias("redis", url=own.url)
    lock, threads = advisory_lock(name, using=using, timeout=5), []
    connect = Target.connect

    def noted(target: Target, timeout: float, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return connect(target, timeout, **options)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def unconnected() -> None:
        backend: Any = registry.entry(using).backend
        for server in backend.servers if using == "redis" else backend.nodes:
            server._close_idle()

    async def main() -> None:
        lease = await lock.aacquire()
        unconnected()
        threads.clear()
        monkeypatch.setattr(Target, "connect", noted)
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(BackendUnavailable, match=r"start new thread|ConnectionFailed"):
            await advisory_lock(f"{name} too", using=using, timeout=5).aacquire()
        assert threading.current_thread() not in threads
        with contextlib.suppress(BackendUnavailable):
            await lease.arelease()

    asyncio.run(main())
    monkeypatch.undo()
    eventually(lambda: not listed(using), "still held")


KINDS: dict[str, Any] = {
    "exclusive": advisory_lock,
    "shared": partial(advisory_lock, shared=True),
    "semaphore": partial(semaphore, limit=2),
    "both": lambda name, **options: lock_all([name, f"{name} too"], **options),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_r6_r20_redis_without_memory_refuses_renews_and_releases(own: Own, name: str, kind: Any) -> None:
    renewed_and_released(kind(name, using="redis", ttl=20).acquire(), "redis", own)
    kind(name, using="redis").acquire().release()


def test_r4_redis_without_memory_hands_over(own: Own, name: str) -> None:
    with ThreadPoolExecutor(1) as pool, own.held(name):
        waiting = pool.submit(advisory_lock(name, using="redis").acquire, timeout=20)
        eventually(lambda: waiters("redis", name) == 1, "it does not wait")
        with no_memory(own):
            own.let_go()
            waiting.result(25).release()
            eventually(lambda: own.keys() == ["fence"], "still held")


def on_a_full_disk(link: Any, name: str) -> None:
    """No file of this process may grow or be written, as on a disk without room."""
    held = advisory_lock(f"{name}, held", using="leasetable").acquire()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    refused = advisory_lock(name, using="leasetable", timeout=1)
    for work in (refused.acquire, partial(held.extend, 20), held.ensure_held, held.release):
        try:
            work()
        except BackendUnavailable as error:
            link.say(str(error))
        else:
            link.say("")
    link.hear()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    link.say("room")
    link.hear()


def test_r7_a_full_disk_refuses_and_says_why_and_what_was_released_becomes_free(name: str) -> None:
    """A lock whose release could not be written is released when there is room again, long before its TTL."""
    with Child(on_a_full_disk, name) as child:
        refused, extended, asked, released = (child.hear() for _ in range(4))
        assert all("disk I/O error" in said for said in (refused, extended, released))
        assert asked == ""  # it is held until the lease ends
        assert f"{name}, held" in listed("leasetable")
        child.say()
        assert child.hear() == "room"
        eventually(lambda: f"{name}, held" not in listed("leasetable"), "still held")
        child.say()


@pytest.mark.parametrize("using", ["leasetable_postgres", "leasetable_mariadb"])
def test_r20_leases_are_renewed_on_a_server_that_takes_no_more_connections(
    using: str, name: str, monkeypatch: Any
) -> None:
    """The connection of a lease is idle for longer than IDLE from one renewal to the next."""
    monkeypatch.setattr(pool, "IDLE", 0.1)
    sessions = registry.entry(using).backend.store._sessions  # type: ignore[attr-defined]
    lock = advisory_lock(name, using=using, ttl=60)
    with monkeypatch.context() as patch:
        lease = lock.acquire()
        patch.setattr(LeaseSession, "connect", mock.Mock(side_effect=OperationalError(1040, "Too many connections")))
        for _ in range(3):
            threading.Event().wait(2 * TICK)
            lease.extend(50)
        assert lease.held
        lease.release()
        eventually(lambda: not sessions.all(), "its connection is kept for nobody")
        with pytest.raises(BackendUnavailable, match="Too many connections"):
            lock.acquire(timeout=1)
    lock.acquire().release()
