"""Lost replies, connections and scripts, and servers that stop or restart: nothing stays held, and nothing is held
twice."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as DriverError

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock, held_locks
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis import commands
from django_distlock.concurrency.clock import monotonic
from django_distlock.manager.registry import registry
from django_distlock.records import drift
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, free, url, waiters
from tests.faults.proxy import Proxy
from tests.support import services
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
LATE = 0.2
SLACK = 0.15  # for a machine that has other things to do; the rule says 50 ms


@pytest.fixture
def proxy(databases: None, settings: Any) -> Iterator[Proxy]:
    """Between this process and the server."""
    server = services.load()["redis1"]
    with Proxy(server["host"], server["port"]) as proxy:
        settings.DISTLOCK = {**settings.DISTLOCK, USING: {"BACKEND": BACKEND, "OPTIONS": {"url": url(proxy.port)}}}
        yield proxy
        registry.close()


def timed(work: Callable[[], Any], *expected: type[Exception]) -> float:
    began = time.monotonic()
    with pytest.raises(expected):
        work()
    return time.monotonic() - began


def test_the_bare_driver_sends_twice(proxy: Proxy, name: str) -> None:
    """The fault that is guarded against: a SET NX whose reply is lost is repeated, and says that it failed."""
    from redis import Redis

    server = services.load()["redis1"]
    bare = Redis(host=server["host"], port=proxy.port, password=server["password"])
    bare.ping()
    proxy.swallow(1, cut=True)
    assert bare.set(f"bare-{name}", "token", nx=True, px=2000) is None
    bare.close()


def test_r19_validity_counts_from_before_the_request(proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply takes its time; the server counts from when it got the request."""
    lock = advisory_lock(name, using=USING, ttl=20)
    with lock as lease:  # connects; the server gets to know the scripts, which would cost a round trip more
        lease.extend(20)
    monkeypatch.setattr(commands, "REPLY", 5.0)  # else a later reply has it asked again
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 5.0)
    proxy.delay(LATE)
    before = monotonic()
    lease = lock.acquire()
    between = monotonic()
    assert between - before >= LATE
    assert (lease.valid_until or 0) < before + LATE + 20 - drift(20)
    lease.extend(20)
    assert monotonic() - between >= LATE
    assert (lease.valid_until or 0) < between + LATE + 20 - drift(20)
    proxy.delay(0)
    lease.release()


@pytest.mark.parametrize("cut", [True, False], ids=["connection cut", "silence"])
def test_r7_a_lost_reply(proxy: Proxy, name: str, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script was executed, and is sent again: the lease is ours, the release is one."""
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 5.0)
    lock = advisory_lock(name, using=USING, timeout=5)
    lock.acquire().release()
    proxy.swallow(1, cut=cut)
    lease = lock.acquire()
    assert [info.fence for report in held_locks(USING) for info in report.locks if info.name == name] == [lease.fence]
    proxy.swallow(1, cut=cut)
    lease.extend(20)
    assert lease.held
    proxy.swallow(1, cut=cut)
    lease.release()
    assert free(USING, name)


@pytest.mark.parametrize("cut", [True, False], ids=["connection cut", "silence"])
def test_r7_a_reply_that_is_lost_for_good(proxy: Proxy, name: str, cut: bool) -> None:
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()
    proxy.swallow(1, cut=cut)
    if cut:
        lock.acquire(timeout=0).release()  # there was time for another connection
    else:
        within(timed(partial(lock.acquire, timeout=0), BackendUnavailable), 0.5 + SLACK)
    eventually(lambda: free(USING, name), "still held")


def test_r5_a_server_that_never_answers(proxy: Proxy, name: str) -> None:
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()
    for timeout in (0, 0.1, 0.3, 0.7):
        proxy.blackhole()
        within(timed(partial(lock.acquire, timeout=timeout), BackendUnavailable), (timeout or 0.5) + SLACK)
        proxy.heal()
        eventually(lambda: free(USING, name), "still held")
    proxy.blackhole()
    within(timed(lambda: asyncio.run(lock.aacquire(timeout=0.3)), BackendUnavailable), 0.3 + SLACK)
    proxy.heal()
    eventually(lambda: free(USING, name), "still held")
    lock.acquire(timeout=5).release()


def test_r5_a_connection_that_is_not_to_be_had(proxy: Proxy, name: str) -> None:
    """There is none yet, and the server accepts one and says nothing on it."""
    registry.entry(USING).backend.pool._target.resolve()  # type: ignore[attr-defined]  # imports the driver
    proxy.blackhole()
    eventually(lambda: monotonic() - registry.entry(USING).backend.pool.ready_at > 0.5, "too early")  # type: ignore[attr-defined]
    within(timed(partial(advisory_lock(name, using=USING).acquire, timeout=0.2), BackendUnavailable), 0.2 + SLACK)


def test_r6_nobody_listens(name: str, settings: Any) -> None:
    server = services.load()["redis1"]
    options = {"url": f"redis://:{server['password']}@{server['host']}:1/0"}
    settings.DISTLOCK = {"nobody": {"BACKEND": BACKEND, "OPTIONS": options}}
    lock = advisory_lock(name, using="nobody")
    for work in (lambda: lock.acquire(timeout=5), lambda: asyncio.run(lock.aacquire(timeout=5))):
        with pytest.raises(BackendUnavailable, match="'nobody': Redis cannot be reached") as caught:
            work()
        assert isinstance(caught.value.__cause__, DriverError)
        assert server["password"] not in f"{caught.value}{caught.value.__cause__}"
    assert [report.error for report in held_locks("nobody")] == ["ConnectionError"]


def test_r5_a_stopped_server(own: Own, name: str) -> None:
    """Its kernel goes on and acknowledges."""
    lock = advisory_lock(name, using=USING)
    grant = own.hold(name)
    assert lock.try_acquire() is None
    stopper = threading.Timer(0.2, own.signal, (signal.SIGSTOP,))
    stopper.start()
    try:
        within(timed(lambda: lock.acquire(timeout=0.5), BackendUnavailable, LockTimeout), 0.5 + SLACK, least=0.5)
        stopper.join()
    finally:
        own.signal(signal.SIGCONT)
    eventually(lambda: waiters(USING, name) == 0, "a place in the queue is left")
    assert own.holder.release(grant)
    assert own.keys() == ["fence"]


def test_scripts_may_be_flushed(own: Own, name: str) -> None:
    lock = advisory_lock(name, using=USING)
    lease = lock.acquire()
    own.client.script_flush()
    lease.extend(20)
    own.client.script_flush()
    lease.release()
    own.client.script_flush()
    grant = own.hold(name)
    own.client.script_flush()
    thread = threading.Thread(target=lambda: lock.acquire(timeout=10).release())
    thread.start()
    eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
    own.client.script_flush()
    assert own.holder.release(grant)
    thread.join(5)
    assert own.keys() == ["fence"]


def test_connections_may_be_killed(own: Own, name: str) -> None:
    """A lease is no matter of the connection, and who waits takes another one."""
    lock = advisory_lock(name, using=USING)
    lease = lock.acquire()
    own.client.client_kill_filter(_type="normal", skipme=True)
    own.client.client_kill_filter(_type="pubsub")
    assert lease.held
    lease.release()
    grant = own.hold(name)
    thread = threading.Thread(target=lambda: lock.acquire(timeout=10).release())
    thread.start()
    for _ in range(3):
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        own.client.client_kill_filter(_type="pubsub")
    eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
    assert own.holder.release(grant)
    thread.join(5)
    assert own.keys() == ["fence"]


def test_r21_fences_rise_through_a_restart(own: Own, name: str) -> None:
    """With an append-only file; the lease outlives the restart, too."""
    lock = advisory_lock(name, using=USING)
    fences = []
    for turn in range(4):
        with lock as lease:
            fences.append(lease.fence)
            if turn == 1:
                own.restart()
                lease.extend(20)
    assert fences == sorted(set(fences))
    assert own.keys() == ["fence"]


def test_r7_a_waiter_that_has_lost_its_connection_can_be_cancelled(own: Own, name: str) -> None:
    grant = own.hold(name)

    async def main() -> None:
        task = asyncio.create_task(advisory_lock(name, using=USING, timeout=None).aacquire())
        for _ in range(2):
            await asyncio.to_thread(eventually, lambda: waiters(USING, name) == 1, "there is no waiter")
            own.client.client_kill_filter(_type="pubsub")
        await asyncio.to_thread(eventually, lambda: waiters(USING, name) == 1, "there is no waiter")
        task.cancel()
        assert await asyncio.wait([task], timeout=2) == ({task}, set())
        assert task.cancelled()

    asyncio.run(main())
    assert own.holder.release(grant)
    assert own.keys() == ["fence"]
