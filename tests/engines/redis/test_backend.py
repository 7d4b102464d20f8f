"""Leases in Redis: what they cost, what is kept on the server, and who is served when."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from redis.crc import key_slot

from django_distlock import advisory_lock, held_locks, semaphore
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis.commands import ACQUIRE, keys_of
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.engines.redis.server import client, counted, keys, text, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock.records import Grant
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


def test_one_command_to_acquire_and_one_to_release(own: Own, name: str) -> None:
    lock = advisory_lock(name, using=USING)
    with lock:  # connected, and listening
        pass
    with counted(own.client) as commands:
        for _ in range(10):
            with lock, lock:
                pass
    assert commands == {"evalsha": 20}

    async def tasks() -> None:
        for _ in range(10):
            async with lock:
                pass

    with counted(own.client) as commands:
        asyncio.run(tasks())
    assert commands == {"evalsha": 20}


def test_r4_a_lease_that_ends_goes_to_the_first_waiter(own: Own, name: str) -> None:
    """And not to a caller that comes before that waiter asks again."""
    site_key.load()
    keys = keys_of(registry.entry(USING).key(name))

    def ask(who: bytes, ttl: int, channel: str = "") -> Any:
        return own.client.eval(ACQUIRE.text, len(keys), *keys, who, 0, ttl, channel, '{"name": "it"}')

    holder, waiter, newcomer = (b"x%032d" % number for number in range(3))
    with own.client.pubsub() as listener:
        listener.subscribe("a-channel")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        assert ask(holder, 500)[0] > 0
        assert ask(waiter, 30_000, "a-channel")[0] == 0
        time.sleep(0.51)
        assert ask(newcomer, 30_000)[0] == 0
        assert listener.get_message(timeout=5)["data"].startswith(waiter)


def test_a_hand_over_costs_a_waiter_no_second_command(own: Own, name: str) -> None:
    """The message has what it needs: the fence, and when its lease began."""
    held, found = own.hold(name), []
    backend = registry.entry(USING).backend
    claim = Claim(key=held.claim.key, ttl=30.0, token=new_token(), answer_by=monotonic() + 5)
    with counted(own.client) as commands:
        thread = threading.Thread(target=lambda: found.append(backend.try_acquire(claim, 5)))
        thread.start()
        eventually(lambda: _queued(own, held) == 1, "there is no waiter", pause=0.001)
        before = monotonic()
        assert own.holder.release(held)
        thread.join(5)
        after = monotonic()
    assert commands["evalsha"] == 1 + 1  # to queue, and the holder's release
    (grant,) = found
    assert grant.fence > held.fence
    assert before - 1 < grant.valid_until - 30 < after
    assert backend.release(grant)


def _queued(own: Own, held: Grant) -> int:
    return int(own.client.zcard(keys_of(held.claim.key)[1]))


@pytest.mark.alone
def test_r4_50_waiters_wait_without_a_command(own: Own, name: str) -> None:
    """As many as there are places wait at the server; the others look now and then, and take turns with them."""
    held = {each: own.hold(each) for each in [f"{name}{number}" for number in range(50)]}
    leases: list[Any] = []

    def wait(one: str) -> None:
        leases.append(advisory_lock(one, using=USING, timeout=20).acquire())

    threads = [threading.Thread(target=wait, args=(one,)) for one in held]
    for thread in threads[: engine.WAITERS]:
        thread.start()
    eventually(lambda: sum(_queued(own, one) for one in held.values()) == engine.WAITERS, "not all wait")
    with counted(own.client) as commands:
        time.sleep(1.0)
    assert commands == {}
    for thread in threads[engine.WAITERS :]:
        thread.start()
    assert sum(_queued(own, one) for one in held.values()) <= engine.WAITERS
    for grant in reversed(held.values()):  # those that have no place first
        assert own.holder.release(grant)
    for thread in threads:
        thread.join(10)
    assert len(leases) == 50
    for lease in leases:
        lease.release()
    assert set(own.keys()) == {"fence"}


def test_keys_are_in_one_slot_and_go(name: str) -> None:
    with advisory_lock(name, using=USING, ttl=20):
        key = registry.entry(USING).key(name)
        assert len({key_slot(each) for each in keys_of(key)}) == 1
        assert keys(USING, name) == {"held": "hash", "fence": "string"}
        with Child(hold, USING, name + "2") as child:
            assert child.hear() == "held"
            thread = threading.Thread(target=lambda: advisory_lock(name + "2", using=USING).acquire().release())
            thread.start()
            eventually(lambda: waiters(USING, name + "2") == 1, "there is no waiter")
            assert set(keys(USING, name + "2")) == {"held", "fence", "queue", "waiters"}
            child.say()
            thread.join(5)
        with client() as server:
            held, *_, fence = keys_of(key)
            assert 15_000 < server.pttl(held) <= 20_000
            assert 86_000_000 < server.pttl(fence) <= 86_400_000
    assert keys(USING, name) == keys(USING, name + "2") == {"fence": "string"}


def test_r21_the_fence_follows_the_servers_clock_and_never_falls(name: str) -> None:
    lock = advisory_lock(name, using=USING)
    with lock as lease, client() as server:
        seconds, microseconds = server.time()
        assert 0 < seconds * 1_000_000 + microseconds - lease.fence < 5_000_000
        first = lease.fence
    with client() as server:
        key = keys_of(registry.entry(USING).key(name))[3]
        server.set(key, first + 10**9)  # the clock was set back
    fences = []
    for _ in range(3):
        with lock as lease:
            fences.append(lease.fence)
    assert fences == [first + 10**9 + step for step in (1, 2, 3)]


def test_what_the_listing_shows(name: str) -> None:
    with advisory_lock(name, using=USING, ttl=20) as lease:
        (info,) = [info for report in held_locks(USING) for info in report.locks if info.name == name]
        assert (info.fence, info.key, info.shared, info.waiters) == (lease.fence, text(USING, name), False, 0)
        assert info.holder is not None
        assert info.holder.endswith(f":{threading.current_thread().name}")
        assert info.expires_at is not None
        assert info.acquired_at is not None
        assert timedelta(seconds=19.9) < info.expires_at - info.acquired_at < timedelta(seconds=20.1)


@pytest.mark.parametrize(
    "junk",
    [b"junk", b"1 {", b"\xff\xfe", b'9999999999999 ["list"]', b"", b"9999999999999 " + b"[" * 99_999],
    ids=lambda junk: repr(junk[:30]),
)
def test_corrupt_values_are_held_by_unknown(name: str, junk: bytes) -> None:
    held = keys_of(registry.entry(USING).key(name))[0]
    with client() as server:
        server.hset(held, "xsomebody", junk)
        server.pexpire(held, 60_000)
        backend = registry.entry(USING).backend
        infos = [info for info in backend.inspect() if info.key == text(USING, name)]
        if junk == b"1 {":  # one that ended in 1970
            assert infos == []
        else:
            assert [(info.holder, info.fence, info.name) for info in infos] == [("unknown", None, None)]
            assert advisory_lock(name, using=USING).try_acquire() is None
            assert backend.break_lock(infos[0])
        advisory_lock(name, using=USING).acquire(timeout=0).release()
        server.set(held, "of another type")
        infos = [info for info in backend.inspect() if info.key == text(USING, name)]
        assert [info.holder for info in infos] == ["unknown"]
        assert backend.break_lock(infos[0])
        advisory_lock(name, using=USING).acquire(timeout=0).release()


def test_a_lock_is_broken_by_its_fence_only(name: str) -> None:
    backend = registry.entry(USING).backend
    lock = advisory_lock(name, using=USING)
    with lock:
        (old,) = [info for info in backend.inspect() if info.name == name]
    with lock as lease:
        assert not backend.break_lock(old)
        assert lease.held


def test_readers_come_in_together(name: str) -> None:
    order: list[str] = []
    with Child(hold, USING, name) as child:
        assert child.hear() == "held"

        def reader(number: int) -> None:
            with advisory_lock(name, using=USING, shared=True, timeout=5):
                order.append("reader")
                together.wait(5)

        together = threading.Barrier(3)
        threads = [threading.Thread(target=reader, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: waiters(USING, name) == 3, "they do not wait")
        child.say()
        for thread in threads:
            thread.join(5)
    assert order == ["reader"] * 3


def test_a_semaphore_has_one_key_for_all_its_holders(name: str) -> None:
    with semaphore(name, limit=2, using=USING), Child(acquire_semaphore, name) as child:
        assert child.hear() is True
        assert semaphore(name, limit=2, using=USING).try_acquire() is None
        (report,) = held_locks(USING)
        assert len({info.key for info in report.locks if info.name == name}) == 1
        assert len([info for info in report.locks if info.name == name]) == 2
        child.say()


def acquire_semaphore(link: Any, name: str) -> None:
    with semaphore(name, limit=2, using=USING):
        link.say(True)
        link.hear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "redis", "url": "redis://localhost"}, "either OPTIONS\\['cache'\\] or OPTIONS\\['url'\\]"),
        ({"cache": "default"}, "'default' is not one of django-redis"),
        ({"cache": "nowhere"}, "'nowhere' cannot be used"),
        ({"url": "http://localhost"}, "is no Redis URL"),
        ({"hosts": "x"}, "no option 'hosts'"),
    ],
)
def test_checks(settings: Any, options: dict[str, str], message: str) -> None:
    settings.DISTLOCK = {"r": {"BACKEND": "django_distlock.backends.redis.RedisBackend", "OPTIONS": options}}
    found = [str(each) for each in run_checks(tags=["distlock"])]
    assert len(found) == 1
    assert re.search(message, found[0]), found


def test_a_server_that_several_databases_share(settings: Any) -> None:
    def deploy() -> list[str | None]:
        return [each.id for each in run_checks(tags=["distlock"], include_deployment_checks=True)]

    assert "distlock.W004" not in deploy()
    settings.DISTLOCK_SITE_KEY = None
    assert "distlock.W004" in deploy()
    settings.DISTLOCK = {"leases": settings.DISTLOCK["leasetable"], "none": None, "lost": {"BACKEND": "nowhere.X"}}
    assert "distlock.W004" not in deploy()


def test_a_missing_driver_is_named_with_the_extra_that_installs_it(settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    options = {"url": "redis://localhost"}
    settings.DISTLOCK = {"r": {"BACKEND": "django_distlock.backends.redis.RedisBackend", "OPTIONS": options}}
    assert 'pip install "django-distlock[redis]"' in str(run_checks(tags=["distlock"])[0])


def test_a_name_that_is_no_unicode_is_told_as_json() -> None:
    entry = registry.entry(USING)
    assert json.loads(entry.backend._holder_info.facts(entry.key("\ud800 ü")))  # type: ignore[attr-defined]
