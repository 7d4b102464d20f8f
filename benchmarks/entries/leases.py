"""Redis, Redlock on five Redis servers, and ZooKeeper: the clients themselves, the peers and ours."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.entries.base import LOCK_NAME, Ready, entry, holding, ours, ready, tooz
from benchmarks.servers import Redis, Redlock, RedlockFar, ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries.base import Body, Entry

TTL = 30  # seconds, for everyone
SPIN = 0.001
PAUSE = 0.02  # at most, before a refused acquire of a majority is tried again
COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
ROOT = "/benchmarks"
PAIRS, FAR_PAIRS, ZOOKEEPER_PAIRS = 10, 2, 8


@contextmanager
def redis_clients(server: type[Redis] = Redis) -> Iterator[list[Any]]:
    """Connect a redis-py client to every node."""
    clients = server.clients()
    for client in clients:
        client.ping()
    yield clients
    for client in clients:
        client.close()


@entry("bare redis-py, spin 1 ms")
def bare_redis() -> Iterator[Ready]:
    """SET NX PX and a script that compares and deletes, tried again after 1 ms: the measure for the group.

    It has no queue and no fence, and nobody renews it.
    """
    key, token = f"bare:{LOCK_NAME}", uuid.uuid4().hex
    with redis_clients() as (client,):
        script = client.script_load(COMPARE_AND_DELETE)

        def cycle(body: Body) -> None:
            while not client.set(key, token, nx=True, px=TTL * 1000):
                time.sleep(SPIN)
            body()
            if not client.evalsha(script, 1, key, token):
                raise RuntimeError("bare redis-py lost the key")

        yield ready(cycle)


@entry("redis-py Lock", judged=False)
def redis_py() -> Iterator[Ready]:
    """It polls every 100 ms, which is its default."""
    with redis_clients() as (client,):
        yield ready(holding(lambda: client.lock(f"redis-py:{LOCK_NAME}", timeout=TTL)))


@entry("django-redis cache.lock", judged=False)
def django_redis() -> Iterator[Ready]:
    """The lock of a cache such as CACHES would make; it polls every 100 ms, which is its default."""
    from django_redis.cache import RedisCache

    cache = RedisCache(Redis.urls()[0], {"OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"}})
    yield ready(holding(lambda: cache.lock(LOCK_NAME, timeout=TTL)))
    cache.client.get_client().connection_pool.disconnect()


@entry("python-redis-lock")
def python_redis_lock() -> Iterator[Ready]:
    """The one peer that is woken: it waits in a blocking pop."""
    from redis_lock import Lock

    with redis_clients() as (client,):
        yield ready(holding(lambda: Lock(client, LOCK_NAME, expire=TTL)))


@entry("pottery Redlock, one master", judged=False)
def pottery_one() -> Iterator[Ready]:
    """It polls after up to 200 ms, as it always does."""
    from pottery import Redlock as Lock

    with redis_clients() as (client,):
        yield ready(holding(lambda: Lock(key=LOCK_NAME, masters={client}, auto_release_time=TTL)))


@entry("sherlock", judged=False)
def sherlock() -> Iterator[Ready]:
    """It polls every 100 ms, which is its default."""
    from sherlock import RedisLock

    with redis_clients() as (client,):
        yield ready(holding(lambda: RedisLock(f"sherlock:{LOCK_NAME}", client=client, expire=TTL, timeout=TTL)))


def bare_redlock(server: type[Redlock], pairs: int) -> Entry:
    """SET NX PX on one node after the other, then the script that compares and deletes: the measure for the group.

    No majority within the time that the lease leaves, no drift of clocks, no node that may fail.
    """

    @entry("bare redis-py, one node after the other", pairs=pairs)
    def opened() -> Iterator[Ready]:
        key, token = f"bare:{LOCK_NAME}", uuid.uuid4().hex
        with redis_clients(server) as clients:
            for client in clients:
                script = client.script_load(COMPARE_AND_DELETE)

            def free() -> None:
                for client in clients:
                    client.evalsha(script, 1, key, token)

            def cycle(body: Body) -> None:
                while sum(bool(each.set(key, token, nx=True, px=TTL * 1000)) for each in clients) <= len(clients) // 2:
                    free()
                    time.sleep(random.uniform(0, PAUSE))
                body()
                free()

            yield ready(cycle)

    return opened


def pottery(server: type[Redlock], pairs: int) -> Entry:
    """pottery's Redlock with five masters; it tries again after up to 200 ms, as it always does."""

    @entry("pottery Redlock", pairs=pairs)
    def opened() -> Iterator[Ready]:
        from pottery import Redlock as Lock

        with redis_clients(server) as clients:
            yield ready(holding(lambda: Lock(key=LOCK_NAME, masters=set(clients), auto_release_time=TTL)))

    return opened


@contextmanager
def kazoo_client() -> Iterator[Any]:
    """Start a session of ZooKeeper, and end it."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=ZooKeeper.hosts())
    client.start()
    client.ensure_path(ROOT)
    yield client
    client.stop()
    client.close()


@entry("bare kazoo, create + delete", contended=False, exclusive=False, pairs=ZOOKEEPER_PAIRS)
def bare_kazoo() -> Iterator[Ready]:
    """Create and delete one ephemeral sequential node: the measure for the group. It excludes nobody."""
    with kazoo_client() as client:

        def cycle(body: Body) -> None:
            node = client.create(f"{ROOT}/bare-", b"", ephemeral=True, sequence=True)
            body()
            client.delete(node)

        yield ready(cycle)


@entry("kazoo Lock", pairs=ZOOKEEPER_PAIRS)
def kazoo() -> Iterator[Ready]:
    """kazoo's recipe, made once and used again as its page shows it; it waits in the queue of nodes."""
    with kazoo_client() as client:
        lock = client.Lock(f"{ROOT}/kazoo-{LOCK_NAME}", "benchmarks")
        yield ready(holding(lambda: lock))


REDIS = (
    bare_redis,
    redis_py,
    django_redis,
    python_redis_lock,
    pottery_one,
    tooz(lambda: Redis.urls()[0].removesuffix("/0")),  # tooz takes the number of the database as an option
    sherlock,
    *ours(Redis.lock_alias),
)
REDLOCK = (bare_redlock(Redlock, PAIRS), pottery(Redlock, PAIRS), *ours(Redlock.lock_alias, pairs=PAIRS))
REDLOCK_FAR = (
    bare_redlock(RedlockFar, FAR_PAIRS),
    pottery(RedlockFar, FAR_PAIRS),
    *ours(RedlockFar.lock_alias, prepare=RedlockFar.configure, pairs=FAR_PAIRS),
)
ZOOKEEPER = (
    bare_kazoo,
    kazoo,
    tooz(lambda: f"zookeeper://{ZooKeeper.hosts()}", pairs=ZOOKEEPER_PAIRS),  # which uses kazoo's Lock
    *ours(ZooKeeper.lock_alias, pairs=ZOOKEEPER_PAIRS),
)
