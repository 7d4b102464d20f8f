"""A ZooKeeper server that hangs, is not there, or starts again."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.zookeeper.server import USING, address, clerk, nodes, path_of, use
from tests.faults.proxy import Proxy
from tests.support import services
from tests.support.processes import Child
from tests.support.timing import within

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases")]


def test_r5_a_server_that_hangs(name: str) -> None:
    """Connected or not yet, the answer comes in time, and says unreachable and not busy."""
    with advisory_lock(f"{name}-warm", using=USING):
        pass
    services.signal(USING, signal.SIGSTOP)
    try:
        for again in (False, True):
            if again:
                registry.close()
            for timeout in (0, 0.3):
                began = time.monotonic()
                with pytest.raises(BackendUnavailable):
                    advisory_lock(name, using=USING).acquire(timeout=timeout)
                within(time.monotonic() - began, timeout + 0.05 if timeout else 0.55)
    finally:
        services.signal(USING, signal.SIGCONT)
    with clerk() as server:
        eventually(lambda: nodes(server, name) == [], "a node stays behind")


def test_r5_a_cancel_is_heard_though_the_server_hangs(name: str) -> None:
    """Whether the node has gone is seen to behind the caller's back, and in no more than its own time."""
    with clerk() as server, advisory_lock(f"{name}-warm", using=USING):
        path = server.create(f"{path_of(name)}/{'0' * 32}-x-", b"", ephemeral=True, sequence=True, makepath=True)
        took: list[float] = []

        async def one(timeout: float, cancelled_after: float) -> None:
            began = time.monotonic()
            task = asyncio.create_task(advisory_lock(name, using=USING).aacquire(timeout=timeout))
            await asyncio.to_thread(eventually, lambda: len(nodes(server, name)) == 2, "it does not wait", pause=0.001)
            services.signal(USING, signal.SIGSTOP)
            try:
                await asyncio.sleep(cancelled_after - (time.monotonic() - began))
                task.cancel()
                began = time.monotonic()
                with suppress(asyncio.CancelledError):
                    await task
                took.append(time.monotonic() - began)
            finally:
                services.signal(USING, signal.SIGCONT)
            await asyncio.to_thread(eventually, lambda: len(nodes(server, name)) == 1, "its node stays behind")

        asyncio.run(one(0.6, 0.57))
        asyncio.run(one(5, 0.1))
        within(took[0], 0.1)
        within(took[1], 0.4)
        server.delete(path)


def test_r6_a_server_that_is_not_there_is_said_at_once(name: str, settings: Any) -> None:
    with Proxy(*address()) as proxy:
        port = proxy.port
    use(settings, hosts=f"127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(BackendUnavailable) as error:
        advisory_lock(name, using=USING).acquire(timeout=10)
    within(time.monotonic() - began, 0.5)
    assert error.value.__cause__ is not None


@pytest.mark.tier2
def test_a_lock_outlives_a_restart_of_the_server(name: str, settings: Any) -> None:
    use(settings, session_timeout=15)
    fences = []
    lease = advisory_lock(name, using=USING).acquire()
    fences.append(lease.fence)
    services.restart(USING)
    eventually(lambda: lease.held, "it is not held again")
    with Child(get_not, name) as rival:
        assert rival.hear() is False
    lease.release()
    with advisory_lock(name, using=USING) as lease:
        fences.append(lease.fence)
    assert fences == sorted(set(fences))


def get_not(link: Any, name: str) -> None:
    lease = advisory_lock(name, using=USING).try_acquire()
    link.say(lease is not None)
