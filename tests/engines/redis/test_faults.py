"""Redis behind a network that holds requests up, and a server that forgets, restarts or is demoted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import caches

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis import server
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.connection import Connection, ConnectionFailed, ErrorReply
from django_distlock.backends.redis.listener import Ear
from django_distlock.backends.redis.target import Target
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.deadline import pause
from django_distlock.records import drift
from tests.conftest import eventually
from tests.engines.redis.server import claim_of, counted, lock_keys, queued, waiters
from tests.faults.proxy import Proxy
from tests.support import services
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
CANARY = "wrong-canary-password"


@pytest.fixture
def proxy(own: Own) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own.port) as proxy:
        yield proxy


@pytest.fixture
def backend(own: Own, proxy: Proxy, name: str) -> Iterator[RedisBackend]:
    """With one connection, whose network may hold up a request for long."""
    backend = RedisBackend("late", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
    grant = backend.try_acquire(claim_of(name), 5)
    assert backend.extend(grant, 30)
    assert backend.release(grant)
    yield backend
    backend.close()


@pytest.fixture
def held(name: str) -> bytes:
    """The key that a holder has."""
    return lock_keys(name)[0]


def delivered(own: Own, proxy: Proxy) -> None:
    """What was detained has arrived."""
    before = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.deliver()
    eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > before, "it does not arrive")


@pytest.mark.parametrize("how", ["released", "released fast", "refused"])
def test_r7_an_acquire_that_arrives_late(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, how: str
) -> None:
    """It was sent again on another connection, which was faster, and is over."""
    if how == "refused":
        with own.held(name):
            proxy.detain(1)
            assert backend.try_acquire(claim_of(name), 2.5) is None
    else:
        proxy.detain(1)
        grant = backend.try_acquire(claim_of(name), 5)
        assert backend.release(grant) if how == "released fast" else asyncio.run(backend.arelease(grant))
    delivered(own, proxy)

    def swept() -> bool:
        backend.tick(monotonic())  # as the keepalive thread would
        return not own.client.exists(held)

    eventually(swept, "it is not released")


def test_r19_a_late_request_does_not_shorten_the_lease(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine, "SILENCE", 10.0)  # a second passes before it is asked again
    grant = backend.try_acquire(claim_of(name), 5)
    proxy.detain(1)
    assert backend.extend(grant, 10)
    assert own.client.pttl(held) <= 10_000
    assert backend.extend(grant, 60)
    delivered(own, proxy)
    assert own.client.pttl(held) > 40_000
    assert backend.release(grant)


def test_r19_validity_counts_from_before_the_request(
    proxy: Proxy, backend: RedisBackend, name: str, monkeypatch: Any
) -> None:
    """However late it arrives: the server may count from any time after it was sent."""
    monkeypatch.setattr(server, "SILENCE", 20.0)  # else it is asked again meanwhile
    monkeypatch.setattr(engine, "SILENCE", 20.0)

    def late(work: Any, *args: Any) -> Any:
        """Its outcome, which is valid from before its request arrived."""
        request = proxy.hold("request")
        waiting = pool.submit(work, *args)
        request.wait()
        between = monotonic()
        request.pass_on()
        grant = waiting.result(25)
        assert grant.valid_until < between + 60 - drift(60)
        return grant

    with ThreadPoolExecutor(1) as pool:
        grant = late(backend.extend, late(backend.try_acquire, claim_of(name, 60), 20), 60)
    assert backend.release(grant)


def test_r5_who_extends_a_lease_is_not_refused_because_the_server_was_silent(
    own: Own, proxy: Proxy, alias: Any, name: str
) -> None:
    """Only the renewals of a process, which wait for each other, leave it alone for a moment."""
    alias(USING, url=f"redis://127.0.0.1:{proxy.port}/0")
    lease = advisory_lock(name, using=USING, ttl=60).acquire(timeout=20)
    proxy.blackhole()
    with pytest.raises(BackendUnavailable):
        lease.extend(60)
    proxy.heal()
    lease.extend(60)
    lease.release()


def test_r5_a_slow_server_is_not_busy_and_not_asked_twice(
    own: Own, proxy: Proxy, backend: RedisBackend, name: str, monkeypatch: Any
) -> None:
    """However little time the caller has, the server may take SILENCE for its answer."""
    monkeypatch.setattr(server, "SILENCE", 20.0, raising=False)
    reply = proxy.hold("reply")
    with ThreadPoolExecutor(1) as pool, counted(own.client) as commands:
        waiting = pool.submit(backend.try_acquire, claim_of(name))
        reply.wait()
        wait([waiting], 0.7)
        assert not waiting.done(), waiting.exception()
        reply.pass_on()
        grant = waiting.result(20)
    assert commands == {"evalsha": 1}
    assert backend.release(grant)


def test_r7_what_was_given_up_at_a_server_that_hangs_holds_nothing(own: Own, name: str) -> None:
    """It executes what is in its sockets when it wakes: each request, and behind it what takes it back."""
    backend = RedisBackend("hanging", {"url": own.url})
    with ThreadPoolExecutor() as pool:
        for held in list(pool.map(lambda number: backend.try_acquire(claim_of(f"{name}{number}"), 10), range(4))):
            assert backend.release(held)

        async def cancelled() -> None:
            task = asyncio.create_task(backend.atry_acquire(claim_of(f"{name} cancelled"), 30))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        own.signal(signal.SIGSTOP)
        tries = [pool.submit(backend.try_acquire, claim_of(f"{name}{seconds}"), seconds) for seconds in (0, 0.2, 1.5)]
        asyncio.run(cancelled())
        for each in tries:
            with pytest.raises(BackendUnavailable):
                each.result(20)
        own.signal(signal.SIGCONT)
    eventually(lambda: set(own.keys()) == {"fence"}, "something is held")
    backend.close()


def test_scripts_may_be_flushed_and_connections_killed(own: Own, name: str) -> None:
    """A lease is no matter of the connection, and who waits takes another one."""

    def forget() -> None:
        own.client.script_flush()
        own.client.client_kill_filter(_type="normal", skipme=True)
        own.client.client_kill_filter(_type="pubsub")

    lock = advisory_lock(name, using=USING, timeout=20)
    lease = lock.acquire()
    for work in (lambda: lease.extend(20), lease.ensure_held, lease.release):
        forget()
        work()
    grant = own.hold(name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: lock.acquire().release())
        for _ in range(3):
            eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
            forget()
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        assert own.holder.release(grant)
        waiting.result(20)
    assert own.keys() == ["fence"]


@pytest.mark.parametrize("asked", [False, True], ids=["in the queue", "before the reply"])
def test_r7_who_leaves_is_taken_back_though_the_server_forgot_the_script(own: Own, name: str, asked: bool) -> None:
    """SCRIPT FLUSH, or the 500 scripts that Redis 7.4 keeps: who sent the script there before does not know."""
    backend = RedisBackend("forgetful", {"url": own.url})

    async def left() -> None:
        """One in the queue whose time is over, and one that is cancelled before the reply."""
        assert await backend.atry_acquire(claim_of(name), 0.1) is None
        own.signal(signal.SIGSTOP)
        task = asyncio.create_task(backend.atry_acquire(claim_of(f"{name} cancelled"), 5))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        own.signal(signal.SIGCONT)

    async def twice() -> None:
        await left()
        assert await backend.atry_acquire(claim_of(name)) is None  # reads the reply
        own.client.script_flush()
        own.hold(f"{name} other")  # another process sends the scripts that it needs
        await left()

    with own.held(name):
        asyncio.run(twice())
    held = lock_keys(f"{name} cancelled" if asked else name)[0]
    eventually(lambda: not own.client.exists(held), "somebody who has left holds the lock")
    backend.close()


def test_a_demoted_server_is_left(own: Own, another: Own, proxy: Proxy, backend: RedisBackend, name: str) -> None:
    """Behind one address that moves on to its replica. Connections to the old one stay open and refuse to write."""
    own.follow(another)
    proxy.target = ("127.0.0.1", another.port)
    grant = backend.try_acquire(claim_of(name), 5)
    assert backend.release(grant)
    assert another.keys() == ["fence"]


@pytest.mark.tier2
def test_r5_a_demoted_server_that_answers_slowly(
    own: Own, another: Own, backend: RedisBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked so often that the caller waits longer than timeout + 2 s."""
    own.follow(another)
    receive = Connection.receive

    async def late(connection: Connection, until: float) -> Any:
        await pause(0.9)
        return await receive(connection, until)

    monkeypatch.setattr(Connection, "receive", late)
    began = monotonic()
    with pytest.raises(BackendUnavailable, match="READONLY"):
        backend.try_acquire(claim_of(name), 0)
    within(monotonic() - began, 2.0)


@pytest.mark.tier2
def test_r5_nodes_that_say_slowly_who_has_the_keys(
    own: Own, backend: RedisBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answers in time, and all together may take no longer than timeout + 2 s."""

    async def moved(connection: Connection, until: float) -> Any:
        connection.owed = 0
        await pause(min(0.9, until - monotonic()))
        if monotonic() >= until:
            raise ConnectionFailed("Redis did not answer in time.", silent=True)
        return ErrorReply(f"MOVED 1 127.0.0.1:{own.port}")

    monkeypatch.setattr(Connection, "receive", moved)
    began = monotonic()
    with pytest.raises(BackendUnavailable):
        backend.try_acquire(claim_of(name), 0)
    within(monotonic() - began, 2.0)


@pytest.mark.parametrize("at", ["acquire", "release"])
def test_r7_a_reply_and_the_next_handshake_are_lost(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network has a bad moment. What was sent is asked for again all the same."""
    connect, broken = Target.connect, [ConnectionError("closed by the server")]

    def fails_once(target: Target, timeout: float, **options: Any) -> Any:
        if broken:
            raise broken.pop()
        return connect(target, timeout, **options)

    grant = backend.try_acquire(claim_of(name), 5) if at == "release" else None
    monkeypatch.setattr(Target, "connect", fails_once)
    proxy.swallow(1, cut=True)
    assert backend.release(grant or backend.try_acquire(claim_of(name), 5))
    assert not broken
    assert not own.client.exists(held)


@pytest.mark.parametrize("connects", [False, True], ids=["before it knows", "while it connects again"])
def test_r7_a_cancellation_when_the_connection_is_lost(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, connects: bool, monkeypatch: Any
) -> None:
    """What the server has done is taken back on another connection, and not left to the TTL."""
    connect, began, may_go_on = Target.connect, threading.Event(), threading.Event()

    def slow(target: Target, timeout: float, **options: Any) -> Any:
        began.set()
        may_go_on.wait(5)
        return connect(target, timeout, **options)

    async def main() -> None:
        asking = asyncio.create_task(backend.atry_acquire(claim_of(name), 5))
        if connects:
            await asyncio.to_thread(began.wait, 5)
        else:
            await asyncio.sleep(0)
            eventually(lambda: own.client.exists(held), "it does not ask")  # the loop stands still
            time.sleep(0.1)  # noqa: ASYNC251 - and does not see that the connection ends
        asking.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking

    monkeypatch.setattr(Target, "connect", slow)
    proxy.swallow(1, cut=True)
    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        asyncio.run(main())
        eventually(lambda: not own.client.exists(held), "it is held")


def test_r7_a_waiter_leaves_when_its_hand_over_is_lost(
    own: Own, backend: RedisBackend, held: bytes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the connection on which it would say so, too."""

    async def main() -> None:
        grant, claim = own.hold(name), claim_of(name)
        asking = asyncio.create_task(backend.atry_acquire(claim, 30))
        await asyncio.to_thread(eventually, lambda: own.client.exists(lock_keys(name)[1]), "it does not wait")

        def ends(ear: Ear, value: Any, mine: Any) -> None:
            asking.cancel()
            ear.end()

        monkeypatch.setattr(Ear, "_hear", ends)
        own.holder.release(grant)
        with pytest.raises(asyncio.CancelledError):
            await asking

    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        asyncio.run(main())
        eventually(lambda: not own.client.exists(held), "it is held")


@pytest.mark.parametrize("waits", [False, True], ids=["before the reply", "in the queue"])
def test_r7_what_takes_an_acquire_back_is_lost_with_its_connection(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, waits: bool, monkeypatch: Any
) -> None:
    """It was written, and has not arrived. Who waits has been handed the lock."""

    async def main() -> None:
        grant = own.hold(name) if waits else None
        reply = None if waits else proxy.hold("reply")
        withdrawal = None if waits else proxy.hold("request", 2)
        asking = asyncio.create_task(backend.atry_acquire(claim_of(name), 30))
        if grant:
            await asyncio.to_thread(eventually, lambda: own.client.exists(lock_keys(name)[1]), "it does not wait")
            withdrawal = proxy.hold("request")
            monkeypatch.setattr(Ear, "_hear", lambda *_: asking.cancel())
            own.holder.release(grant)
        else:
            await asyncio.to_thread(reply.wait)
            asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(withdrawal.wait)
        assert own.client.exists(held)
        proxy.cut()

    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        asyncio.run(main())
        eventually(lambda: (backend.tick(monotonic()), not own.client.exists(held))[1], "it is held")


@pytest.mark.parametrize("waits", [False, True], ids=["before the reply", "in the queue"])
def test_r7_what_takes_an_acquire_back_is_refused(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, waits: bool
) -> None:
    """The account may run no script for a moment. Who waited is in the queue, and its process listens on."""

    def allow(rule: str) -> None:
        own.client.execute_command("ACL", "SETUSER", "default", rule)

    async def main() -> None:
        grant = own.hold(name) if waits else None
        reply = None if waits else proxy.hold("reply")
        withdrawal = None if waits else proxy.hold("request", 2)
        asking = asyncio.create_task(backend.atry_acquire(claim_of(name), 30))
        if reply:
            await asyncio.to_thread(reply.wait)
        else:
            await asyncio.to_thread(eventually, lambda: queued(own.client, name) == 1, "it does not wait")
        allow("-@scripting")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        if reply:
            await asyncio.to_thread(withdrawal.wait)
            withdrawal.pass_on()
            reply.pass_on()
        await asyncio.to_thread(eventually, lambda: own.client.acl_log(), "it is not refused")
        allow("+@scripting")
        if grant:
            own.holder.release(grant)

    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        asyncio.run(main())
        eventually(lambda: (backend.tick(monotonic()), not own.client.exists(held))[1], "it is held")


def test_r7_a_release_that_failed_is_sent_when_the_server_answers_again(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str
) -> None:
    grant = backend.try_acquire(claim_of(name), 5)
    proxy.target = ("127.0.0.1", 1)
    proxy.cut()
    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        with pytest.raises(BackendUnavailable):
            backend.release(grant)
        assert own.client.exists(held)
        proxy.target = ("127.0.0.1", own.port)
        eventually(lambda: (backend.tick(monotonic()), not own.client.exists(held))[1], "it is held")


def test_r7_an_acquire_is_taken_back_when_the_server_answers_again(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str
) -> None:
    """It has given the lock, and its reply was lost as are all that follow."""

    def lose_the_next(_: int = 0) -> None:
        proxy.swallow(1, cut=True)

    with advisory_lock(f"{name} too", using="memory"):  # so that the keepalive thread runs
        lose_the_next()
        proxy.on_request = lose_the_next
        with pytest.raises(BackendUnavailable):
            backend.try_acquire(claim_of(name), 5)
        assert own.client.exists(held)
        proxy.on_request = lambda _: None
        proxy.heal()
        eventually(lambda: (backend.tick(monotonic()), not own.client.exists(held))[1], "it is held")


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":1\r\n:", b"*0\r\n:", b"*1\r\n:"])
def test_r7_what_no_script_of_ours_returns_grants_nothing(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, reply: bytes
) -> None:
    """In the place of the beginning of a grant. What it may have done is taken back."""
    proxy.rewrite(b"*2\r\n:", reply)
    with pytest.raises(BackendUnavailable, match="no reply of our script"):
        backend.try_acquire(claim_of(name), 5)
    eventually(lambda: not own.client.exists(held), "it is held")


@pytest.mark.parametrize("reply", ["MOVED", "MOVED x 127.0.0.1:1", "MOVED 1 nowhere"])
def test_r6_a_move_to_nowhere(own: Own, backend: RedisBackend, name: str, reply: str, monkeypatch: Any) -> None:
    async def moved(connection: Connection, until: float) -> Any:
        connection.owed = 0
        return ErrorReply(reply)

    monkeypatch.setattr(Connection, "receive", moved)
    with pytest.raises(BackendUnavailable, match=f"refused: {reply}"):
        backend.try_acquire(claim_of(name), 5)


@pytest.mark.parametrize("cache", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_the_server_of_a_cache(own: Own, alias: Any, settings: Any, name: str, cache: str) -> None:
    """With the options of its pool: here the database."""
    location = own.url.removesuffix("0") + "3"
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": cache, "LOCATION": [location]}}
    alias("cached", USING, cache="locks")
    with advisory_lock(name, using="cached", timeout=10):
        assert own.client.info("keyspace")["db3"]["keys"]
    caches.close_all()


def test_options_that_would_retry_or_decode_change_nothing(own: Own, name: str) -> None:
    """Those of a cache or URL are meant for redis-py's own client."""
    options = "retry_on_timeout=1&health_check_interval=1&decode_responses=1&socket_timeout=0.001&protocol=2"
    backend = RedisBackend("tuned", {"url": f"{own.url}?{options}"})
    grant = backend.try_acquire(claim_of(name), 5)
    assert backend.release(grant)
    backend.close()


@pytest.mark.parametrize("using", ["redis", "redlock"])
@pytest.mark.parametrize("nobody", [False, True], ids=["wrong password", "nobody listens"])
@pytest.mark.cold
def test_r6_a_redis_that_cannot_be_used(alias: Any, name: str, using: str, nobody: bool) -> None:
    """Sync and async, and in the list of locks; none of it tells the password."""
    ports = [1 if nobody else services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
    urls = [f"redis://:{CANARY}@127.0.0.1:{port}/0" for port in ports]
    options = {"url": urls[0]} if using == "redis" else {"nodes": [f"{each}?x={n}" for n, each in enumerate(urls)]}
    alias(using, **options)
    lock = advisory_lock(name, using=using, timeout=20)
    for work in (lock.acquire, async_to_sync(lock.aacquire), lock.locked, async_to_sync(lock.alocked)):
        with pytest.raises(BackendUnavailable, match=r"reached|failed|password|invalid") as caught:
            work()
        assert caught.value.__cause__ is not None
        assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"
    (report,) = held_locks(using)
    assert report.error
