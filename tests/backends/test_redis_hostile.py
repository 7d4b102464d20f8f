"""What a server, its operator or somebody else may do to leases in Redis that nobody expects."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends import redis_connection
from django_distlock.backends.redis import RedisBackend
from django_distlock.backends.redis_scripts import keys_of
from django_distlock.records import Claim
from django_distlock.registry import registry
from django_distlock.tokens import new_token
from django_distlock.waiting import adrive, drive
from tests.backends.redis_server import BACKEND, Own, waiters
from tests.backends.test_redis_processes import queue
from tests.conftest import eventually
from tests.faults.proxy import Proxy
from tests.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


def claim_of(name: str, ttl: float = 30.0, **facts: Any) -> Claim:
    key = registry.entry(USING).key(name)
    return Claim(key=key, ttl=ttl, token=new_token(), answer_by=time.monotonic() + 5, **facts)


def test_an_account_that_may_not_listen_gets_no_wrong_replies(own: Own, name: str) -> None:
    """The refusal of SUBSCRIBE is a reply, too; the reply to the script that follows it must not be taken for that of
    the next one."""
    own.client.acl_setuser("mute", enabled=True, nopass=True, keys=["distlock:*"], commands=["+@all"], reset=True)
    backend = RedisBackend("mute", {"url": own.url.replace("redis://", "redis://mute:x@")})
    with own.holding(name):
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="does not let us listen"):
                backend.try_acquire(claim_of(name), 0.1)
            assert backend.try_acquire(claim_of(name)) is None
            grant = backend.try_acquire(claim_of(name + "other"))
            assert grant is not None
            assert backend.verify(grant)
            assert backend.release(grant)
    backend.close()


def test_the_documented_account_is_enough(own: Own, name: str) -> None:
    commands = "+hello +subscribe +eval +evalsha +scan +@hash +@sortedset +@string +@keyspace +publish +pubsub +time"
    rules = ["reset", "on", "nopass", "~distlock:*", "&distlock:*", *commands.split()]
    own.client.execute_command("ACL", "SETUSER", "app", *rules)
    backend = RedisBackend("app", {"url": own.url.replace("redis://", "redis://app:x@")})
    with own.holding(name):
        assert backend.try_acquire(claim_of(name), 0.1) is None
        assert len(list(backend.inspect())) == 1
        thread = threading.Timer(0.2, own.let_go)
        thread.start()
        grant = backend.try_acquire(claim_of(name), 5)
        thread.join()
    assert grant is not None
    assert backend.extend(grant, 20) is not None
    assert all(backend.break_lock(info) for info in backend.inspect())
    backend.close()


def test_a_demoted_server_is_left(own: Own, name: str, tmp_path: Path) -> None:
    """Behind one address that moves on to its replica. Connections to the old one stay open and refuse to write."""
    (tmp_path / "other").mkdir()
    with Own(tmp_path / "other") as other, Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("moving", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        grants = [backend.try_acquire(claim_of(f"{name}{number}"), 1) for number in range(2)]
        links = [drive(backend.pool.link(time.monotonic() + 5)) for _ in range(5)]
        for link in links:
            backend.pool.give(link)
        own.client.replicaof("127.0.0.1", other.port)
        proxy.target = ("127.0.0.1", other.port)
        grant = backend.try_acquire(claim_of(name), 1)
        assert grant is not None
        assert backend.release(grant)
        assert other.keys() == ["fence"]
        assert all(grants)
        backend.close()


def test_a_task_that_goes_away_passes_its_connection_on(own: Own, monkeypatch: Any) -> None:
    monkeypatch.setattr(redis_connection, "MAX_LINKS", 1)
    pool = RedisBackend("r", {"url": own.url}).pool

    async def main() -> None:
        link = await adrive(pool.link(time.monotonic() + 5))
        first, second = (asyncio.create_task(adrive(pool.link(time.monotonic() + 1))) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pool.give(link)  # wakes the first
        first.cancel()
        pool.give(await second)

    asyncio.run(main())
    pool.close()


def test_tasks_that_take_connections_all_the_time_do_not_starve_others(own: Own, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(redis_connection, "MAX_LINKS", 4)
    done = [0] * 12
    backend = RedisBackend("r", {"url": own.url})

    async def work(number: int) -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            grant = await backend.atry_acquire(claim_of(f"{name}{number}"))
            assert grant is not None
            assert await backend.arelease(grant)
            done[number] += 1

    async def main() -> None:
        await asyncio.gather(*map(work, range(len(done))))

    asyncio.run(main())
    assert min(done) > max(done) / 3, done
    backend.close()


def test_r4_a_dead_writer_does_not_keep_readers_out(name: str) -> None:
    """Nobody releases anything: who asks must notice himself that the first in the queue has gone."""
    with advisory_lock(name, using=USING, shared=True), Child(queue, name) as dying:
        assert dying.hear() == "asking"
        eventually(lambda: waiters(USING, name) == 1, "nobody waits")
        dying.kill()
        got: list[object] = []

        def read() -> None:
            with advisory_lock(name, using=USING, shared=True, timeout=1):
                got.append("in")

        thread = threading.Thread(target=read)
        thread.start()
        thread.join(5)
        assert got == ["in"]


def test_junk_on_a_waiters_channel(name: str, own: Own) -> None:
    with own.holding(name):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(advisory_lock(name, using=USING).try_acquire(5)))
        thread.start()
        eventually(lambda: waiters(USING, name) == 1, "nobody waits")
        for channel in own.client.pubsub_channels("distlock:*"):
            for junk in (b"", b"junk", b"a b c", b"x 1 2 3"):
                own.client.publish(channel, junk)
        who = own.client.zrange(keys_of(registry.entry(USING).key(name))[1], 0, 0)[0]
        for channel in own.client.pubsub_channels("distlock:*"):
            own.client.publish(channel, who + b" x y")
        own.let_go()
        thread.join(5)
    assert found
    found[0].release()


@pytest.mark.parametrize("value", [b"inf", b"nan", b"1e400", b"9" * 40, b"-5", b"junk", b"0x7fffffffffffffff"])
def test_r21_a_damaged_fence(own: Own, name: str, value: bytes) -> None:
    own.client.set(keys_of(registry.entry(USING).key(name))[3], value)
    fences = []
    for _ in range(3):
        with advisory_lock(name, using=USING) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))
    assert all(0 < fence < 2**63 for fence in fences)


def test_a_queue_that_somebody_deleted(own: Own, name: str) -> None:
    with own.holding(name):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(advisory_lock(name, using=USING).try_acquire(5)))
        thread.start()
        eventually(lambda: waiters(USING, name) == 1, "nobody waits")
        keys = keys_of(registry.entry(USING).key(name))
        own.client.delete(keys[1])
        own.client.client_kill_filter(_type="pubsub")
        eventually(lambda: own.client.zcard(keys[1]) == 1, "it is not in the queue", patience=3)
        own.let_go()
        thread.join(5)
    found[0].release()


def test_a_damaged_name_can_be_broken(own: Own) -> None:
    own.client.hset(b"distlock:{\xff\xfe}:held", b"x\xffsomebody", "junk")
    (info,) = registry.entry(USING).backend.inspect()
    assert info.key.encode("utf-8")
    assert registry.entry(USING).backend.break_lock(info)
    assert own.keys() == []


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://:s3cr/et@localhost:6379/0"},
        {"url": "redis://:s3cr#et@localhost:6379/0"},
        {"url": "redis://user:s3cr:et@[localhost/0"},
        {"url": "s3cr://user:et@localhost/0"},
        {"url": 5},
        {"url": b"redis://localhost"},
        {"url": ""},
        {"cache": 5},
        {"cache": None},
    ],
)
def test_bad_options_are_told_without_secrets(settings: Any, options: dict[str, Any]) -> None:
    settings.DISTLOCK = {"r": {"BACKEND": BACKEND, "OPTIONS": options}}
    found = run_checks(tags=["distlock"])
    assert [each.id for each in found] == ["distlock.E003"]
    assert "s3cr" not in str(found)
    with pytest.raises(BackendUnavailable) as caught:
        advisory_lock("x", using="r").acquire(timeout=0)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cr" not in str(error)
        error = error.__cause__ or error.__context__


def test_a_semaphore_of_any_size(own: Own, name: str) -> None:
    """Also one beyond what Lua prints in full."""
    backend = registry.entry(USING).backend
    with own.holding(name):
        threading.Timer(0.2, own.let_go).start()
        began = time.monotonic()
        grant = backend.try_acquire(claim_of(name, 2.0, limit=10**16), 5)
        assert time.monotonic() - began < 2
    assert grant is not None
    assert backend.release(grant)


def test_many_held_locks_are_listed(own: Own) -> None:
    with own.client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.hset(f"distlock:{{n{number}}}:held", "xsomebody", '9999999999999 {"fence":1}')
        pipe.execute()
    began = time.monotonic()
    assert len(list(registry.entry(USING).backend.inspect())) == 20_000
    print(time.monotonic() - began)


def test_r19_a_long_wait_does_not_eat_up_a_short_lease(own: Own, name: str) -> None:
    """The clocks may drift apart while one waits to be woken; who has a short lease asks again."""
    backend = registry.entry(USING).backend
    with own.holding(name):
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
        await asyncio.to_thread(eventually, lambda: own.client.zcard(key), "nobody waits")
        proxy.delay(0.05)
        task.cancel()
        await asyncio.sleep(0.01)

    with Proxy("127.0.0.1", own.port) as proxy:
        backend.target.url = f"redis://127.0.0.1:{proxy.port}/0"  # type: ignore[attr-defined]
        with own.holding(name):
            with suppress(asyncio.CancelledError):
                asyncio.run(main(proxy))
            proxy.delay(0)
            eventually(lambda: not own.client.zcard(key), "it waits on", patience=2)
            assert backend.pool._links == set(backend.pool._idle)  # type: ignore[attr-defined]
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
    eventually(lambda: own.keys() == ["fence"], "still held", patience=3)


def swept(backend: RedisBackend, own: Own, held: bytes) -> bool:
    """Tick as the keepalive thread would."""
    backend.tick(time.monotonic())
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
        assert (short_cut and backend.free_now(grant)) or backend.release(grant)
        proxy.deliver()
        eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] >= 5, "it does not arrive")
        eventually(lambda: swept(backend, own, held), "held by nobody", patience=3)


def test_r7_an_acquire_that_arrives_after_a_refusal(own: Own, name: str) -> None:
    held = keys_of(registry.entry(USING).key(name))[0]
    with detained(own, name) as (backend, proxy):
        with own.holding(name):
            proxy.detain(1)
            assert backend.try_acquire(claim_of(name), 0.7) is None
        calls = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        proxy.deliver()
        eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > calls, "it does not arrive")
        eventually(lambda: swept(backend, own, held), "held by nobody", patience=2)


def test_r19_a_request_that_arrives_late_does_not_shorten_the_lease(own: Own, name: str) -> None:
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

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

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
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

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
        eventually(lambda: swept(backend, own, keys_of(grant.claim.key)[0]), "still held", patience=3)
        backend.close()
