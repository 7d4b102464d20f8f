"""Leases in Redis: what they cost, who is served when, and what an operator or another client may have done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import claim_of, counted, lock_keys, waiters

if TYPE_CHECKING:
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


@pytest.fixture
def keys(own: Own, name: str) -> tuple[bytes, ...]:
    return lock_keys(name)


def fences(name: str) -> list[int]:
    """Of three holds, one after the other."""
    found = []
    for _ in range(3):
        with advisory_lock(name, using=USING) as lease:
            found.append(lease.fence)
    return found


def test_one_command_to_acquire_and_one_to_release(own: Own, name: str) -> None:
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()  # connected
    with counted(own.client) as commands:
        for _ in range(10):
            with lock, lock:
                pass
    assert commands == {"evalsha": 20}


def test_r4_a_wait_and_its_hand_over_cost_one_command(own: Own, name: str, keys: Any, monkeypatch: Any) -> None:
    """To queue; the message of the release has all else. The first wait of a process asks twice, before it listens."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 60.0)  # however slow the machine is
    assert own.holder.release(own.hold(name))  # now the server knows the scripts
    backend = registry.entry(USING).backend
    with ThreadPoolExecutor(1) as pool:
        for first in (True, False):
            held = own.hold(name)
            with counted(own.client) as commands:
                waiting = pool.submit(backend.try_acquire, claim_of(name), 20)
                eventually(lambda: own.client.zcard(keys[1]) == 1, "there is no waiter")
                before = monotonic()
                assert own.holder.release(held)
                grant = waiting.result(20)
            assert commands["evalsha"] == 1 + 1 + first
            assert commands["subscribe"] == first
            assert grant.fence > held.fence
            assert before - 1 < grant.valid_until - 30 < monotonic()
            assert backend.release(grant)


def test_r4_a_waiter_learns_that_the_lease_ends_sooner(own: Own, name: str, keys: Any, monkeypatch: Any) -> None:
    """The lock goes to a holder with a shorter TTL than the one that the waiter saw, which dies."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 1.0)
    first = own.hold(name, 60.0)
    with ThreadPoolExecutor(2) as pool, counted(own.client) as commands:
        waiting = []
        for ttl in (0.5, 60.0):
            waiting.append(pool.submit(own.holder.try_acquire, claim_of(name, ttl), 30))
            eventually(lambda: own.client.zcard(keys[1]) == len(waiting), "it does not wait")
        assert own.holder.release(first)
        assert waiting[0].result(20)
        grant = waiting[1].result(40)
    assert grant is not None, "it sleeps until the end of the lease that it saw"
    assert commands["evalsha"] + commands["eval"] <= 14
    assert own.holder.release(grant)


def test_r21_the_fence_follows_the_servers_clock_and_never_falls(own: Own, name: str, keys: tuple[bytes, ...]) -> None:
    first = fences(name)[0]
    seconds, microseconds = own.client.time()
    assert 0 < seconds * 1_000_000 + microseconds - first < 60_000_000
    own.client.set(keys[3], first + 10**9)  # the clock was set back
    own.stop()
    own.start()
    assert fences(name) == [first + 10**9 + step for step in (1, 2, 3)]
    for damaged in (b"inf", b"nan", b"1e400", b"9" * 40, b"-5", b"junk", b"0x7fffffffffffffff"):
        own.client.set(keys[3], damaged)
        found = fences(name)
        assert found == sorted(set(found)), damaged
        assert all(0 < fence < 2**63 for fence in found), damaged


@pytest.mark.parametrize("junk", [b"junk", b"\xff\xfe", b"9999999999999 " + b"[" * 99_999, b"1 {"])
def test_corrupt_values_are_held_by_unknown(own: Own, name: str, keys: tuple[bytes, ...], junk: bytes) -> None:
    backend, lock = registry.entry(USING).backend, advisory_lock(name, using=USING)
    own.client.hset(keys[0], "xsomebody", junk)
    if junk == b"1 {":  # one that ended in 1970
        assert list(backend.inspect()) == []
    else:
        (info,) = backend.inspect()
        assert (info.holder, info.fence, info.name) == ("unknown", None, None)
        assert lock.try_acquire() is None
        assert backend.break_lock(info)
    lock.acquire().release()
    own.client.set(keys[0], "of another type")
    (info,) = backend.inspect()
    assert info.holder == "unknown"
    assert backend.break_lock(info)
    lock.acquire().release()


def test_an_account_that_may_not_listen_gets_no_wrong_replies(own: Own, name: str) -> None:
    """The refusal of SUBSCRIBE is a reply, too, and not the one to the script behind it."""
    own.client.acl_setuser("mute", enabled=True, nopass=True, keys=["distlock:*"], commands=["+@all"], reset=True)
    backend = RedisBackend("mute", {"url": own.url.replace("redis://", "redis://mute:x@")})
    with own.held(name):
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="does not let us listen"):
                backend.try_acquire(claim_of(name), 1)
            assert backend.try_acquire(claim_of(name)) is None
            grant = backend.try_acquire(claim_of(name + "other"))
            assert backend.verify(grant)
            assert backend.release(grant)
    backend.close()


def test_r22a_junk_on_a_waiters_channel_and_a_queue_that_was_deleted(
    own: Own, name: str, keys: tuple[bytes, ...]
) -> None:
    queue, lock = keys[1], advisory_lock(name, using=USING)
    with ThreadPoolExecutor(1) as pool, own.held(name):
        waiting = pool.submit(lock.acquire, timeout=25)
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        who = own.client.zrange(queue, 0, 0)[0]
        now, micros = own.client.time()
        # the last one is a grant, and one of this moment, but another waiter's
        others = b"x%032d %d %d" % (7, 2**50, now * 1_000_000 + micros)
        for channel in own.client.pubsub_channels("distlock:*"):
            for junk in (b"", b"junk", b"a b c", b"x 1 2 3", who + b" x y", others):
                own.client.publish(channel, junk)
        own.client.delete(queue)
        own.client.client_kill_filter(_type="pubsub")
        eventually(lambda: own.client.zcard(queue) == 1, "it is not in the queue")
        assert not waiting.done(), "what was said to another waiter was taken for a grant"
        own.let_go()
        waiting.result(25).release()
