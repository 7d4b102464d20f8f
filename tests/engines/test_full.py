"""A Redis server without memory, and a disk without room: callers are refused with the reason, holders keep what they
have, and what is released is free."""

from __future__ import annotations

import contextlib
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from redis.exceptions import OutOfMemoryError

from django_distlock import BackendUnavailable, advisory_lock, held_locks, lock_all, semaphore
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, Own, free, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


@contextlib.contextmanager
def no_memory(own: Own) -> Iterator[None]:
    own.client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):  # what a bare driver gets
        own.client.set("bare", "token", nx=True, px=1000)
    yield
    own.client.config_set("maxmemory", 0)


def test_r6_redis_without_memory_refuses_and_says_why(own: Own, name: str) -> None:
    lock = advisory_lock(name, using="redis", timeout=2)
    with no_memory(own), pytest.raises(BackendUnavailable, match="maxmemory"):
        lock.acquire()
    assert free("redis", name)
    lock.acquire().release()


KINDS: dict[str, Any] = {
    "exclusive": advisory_lock,
    "shared": partial(advisory_lock, shared=True),
    "semaphore": partial(semaphore, limit=2),
    "both": lambda name, **options: lock_all([name, f"{name} too"], **options),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_r20_redis_without_memory_renews_and_releases(own: Own, name: str, kind: Any) -> None:
    """Otherwise a server that is full for the length of a TTL would take every lock away."""
    lease = kind(name, using="redis", ttl=20).acquire()
    with no_memory(own):
        for each in getattr(lease, "leases", [lease]):
            before = each.valid_until
            each.extend(40)
            assert each.valid_until > before + 10
        lease.release()
        eventually(lambda: not held_names("redis"), "still held")
    kind(name, using="redis").acquire().release()


@pytest.fixture
def three(databases: None, settings: Any, tmp_path: Path) -> Iterator[list[Own]]:
    """The three nodes of the alias "redlock"."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            nodes.append(stack.enter_context(Own(tmp_path / str(number))))
        backend = {
            "BACKEND": "django_distlock.backends.redlock.RedlockBackend",
            "OPTIONS": {"nodes": [node.url for node in nodes]},
        }
        settings.DISTLOCK = {**settings.DISTLOCK, "redlock": backend}
        yield nodes
        registry.close()


def test_r20_redlock_without_memory_renews_releases_and_refuses(three: list[Own], name: str) -> None:
    lease = advisory_lock(name, using="redlock", ttl=20).acquire(timeout=20)
    with contextlib.ExitStack() as stack:
        for node in three:
            stack.enter_context(no_memory(node))
        before = lease.valid_until or 0
        lease.extend(40)
        assert (lease.valid_until or 0) > before + 10
        with pytest.raises(BackendUnavailable, match="OutOfMemoryError"):
            advisory_lock(f"{name} another", using="redlock", timeout=2).acquire()
        lease.release()
        eventually(lambda: not held_names("redlock"), "still held")
    advisory_lock(name, using="redlock").acquire(timeout=20).release()


def held_names(using: str) -> list[str]:
    (report,) = held_locks(using)
    assert not report.error
    return [info.name or info.key for info in report.locks]


def ask_at(link: Any, url: str, name: str) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, "redis": {"BACKEND": BACKEND, "OPTIONS": {"url": url}}}
    registry.reset()
    with advisory_lock(name, using="redis", timeout=20):
        link.say("taken")


def test_r4_redis_without_memory_hands_over(own: Own, name: str) -> None:
    lease = advisory_lock(name, using="redis").acquire()
    with Child(ask_at, own.url, name) as waiter:
        eventually(lambda: waiters("redis", name) == 1, "it does not wait")
        own.client.config_set("maxmemory", 1)
        lease.release()
        assert waiter.hear() == "taken"
    eventually(lambda: free("redis", name), "still held")


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


def listed(name: str) -> list[str]:
    (report,) = held_locks("leasetable")
    return [info.name.removeprefix(name) for info in report.locks if name in info.name]


def test_r7_a_full_disk_refuses_and_says_why_and_what_was_released_becomes_free(name: str) -> None:
    """A lock whose release could not be written is released when there is room again, long before its TTL."""
    with Child(on_a_full_disk, name) as child:
        refused, extended, asked, released = (child.hear() for _ in range(4))
        assert "disk I/O error" in refused
        assert "disk I/O error" in extended
        assert asked == ""  # it is held until the lease ends
        assert "disk I/O error" in released
        assert listed(name) == [", held"]
        child.say()
        assert child.hear() == "room"
        eventually(lambda: listed(name) == [], "still held")
        child.say()
