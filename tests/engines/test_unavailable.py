"""R6, R7: a Redis that refuses the password or is not there, and lost replies of leases."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.backends.leasetable import backend as leasetable
from django_distlock.backends.redis import backend as redis
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.support import services

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

pytestmark = pytest.mark.usefixtures("databases")
CANARY = "wrong-canary-password"


@pytest.mark.parametrize("using", ["redis", "redlock"])
@pytest.mark.parametrize("nobody", [False, True], ids=["wrong password", "nobody listens"])
def test_r6_a_redis_that_cannot_be_used(alias: Any, name: str, using: str, nobody: bool) -> None:
    """Sync and async, and in the list of locks; none of it tells the password."""
    ports = [1 if nobody else services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
    urls = [f"redis://:{CANARY}@127.0.0.1:{port}/0" for port in ports]
    options = {"url": urls[0]} if using == "redis" else {"nodes": [f"{each}?x={n}" for n, each in enumerate(urls)]}
    alias(using, **options)
    lock = advisory_lock(name, using=using)
    for work in (
        lambda: lock.acquire(timeout=20),
        lambda: asyncio.run(lock.aacquire(timeout=20)),
        lock.locked,
        lambda: asyncio.run(lock.alocked()),
    ):
        with pytest.raises(BackendUnavailable, match=r"reached|failed|password|invalid") as caught:
            work()
        assert caught.value.__cause__ is not None
        assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"
    (report,) = held_locks(using)
    assert report.error
    registry.close()


@pytest.fixture(params=["redis", "leasetable_postgres", "leasetable_mariadb"])
def using(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(redis, "SILENCE", 20.0)
    monkeypatch.setattr(leasetable, "PATIENCE", 20.0)
    return str(request.param)


@pytest.fixture
def proxy(using: str, proxied: Proxied) -> Proxy:
    return proxied(using)


def held(using: str, name: str) -> list[Any]:
    (report,) = held_locks(using)
    return [report.error] if report.error else [info.fence for info in report.locks if info.name == name]


@pytest.mark.cold
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_r7_a_lost_reply_of_a_lease(proxy: Proxy, using: str, name: str, cut: bool) -> None:
    """What was asked was executed, and is asked again: the lease is ours, the release is one."""
    lock = advisory_lock(name, using=using, timeout=20)
    lock.acquire().release()
    proxy.swallow(1, cut=cut)
    lease = lock.acquire()
    assert held(using, name) == [lease.fence]
    proxy.swallow(1, cut=cut)
    lease.extend(20)
    assert lease.held
    proxy.swallow(1, cut=cut)
    lease.release()
    eventually(lambda: held(using, name) == [], "still held")


@pytest.mark.cold
def test_r7_a_lease_whose_caller_has_gone_is_given_back(proxy: Proxy, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using, ttl=60)
    lock.acquire(timeout=20).release()
    proxy.swallow(1)
    with suppress(BackendUnavailable):
        lock.acquire(timeout=0).release()
    eventually(lambda: held(using, name) == [], "still held")
