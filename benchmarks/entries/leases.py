"""Redis, Redlock on five Redis servers, and ZooKeeper: the clients themselves, the peers and ours."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.entries.base import LOCK_NAME, Ready, entry, holding, ours, ready, tooz
from benchmarks.servers import REDIS, REDLOCK, ZOOKEEPER, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries.base import Body

TTL = 30  # seconds, for everyone
SPIN = 0.001
PAUSE = 0.02  # at most, before a refused acquire of a majority is tried again
COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
ROOT = "/benchmarks"
PAIRS, ZOOKEEPER_PAIRS = 10, 8


@contextmanager
def redis_clients(server: Server = REDIS) -> Iterator[list[Any]]:
    """Connect a redis-py client to every node."""
    import redis

    with ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in server.urls()]
        for client in clients:
            client.ping()
        yield clients


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


@entry("python-redis-lock")
def python_redis_lock() -> Iterator[Ready]:
    """The one peer that is woken: it waits in a blocking pop."""
    from redis_lock import Lock

    with redis_clients() as (client,):
        yield ready(holding(lambda: Lock(client, LOCK_NAME, expire=TTL)))


@entry("sherlock", judged=False)
def sherlock() -> Iterator[Ready]:
    """It polls every 100 ms, which is its default."""
    from sherlock import RedisLock

    with redis_clients() as (client,):
        yield ready(holding(lambda: RedisLock(f"sherlock:{LOCK_NAME}", client=client, expire=TTL, timeout=TTL)))


@entry("bare redis-py, one node after the other", pairs=PAIRS)
def bare_redlock() -> Iterator[Ready]:
    """SET NX PX on one node after the other, then the script that compares and deletes: the measure for the group.

    No majority within the time that the lease leaves, no drift of clocks, no node that may fail.
    """
    key, token = f"bare:{LOCK_NAME}", uuid.uuid4().hex
    with redis_clients(REDLOCK) as clients:
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


@entry("pottery Redlock", pairs=PAIRS)
def pottery() -> Iterator[Ready]:
    """pottery's Redlock with five masters; it tries again after up to 200 ms, as it always does."""
    from pottery import Redlock as Lock

    with redis_clients(REDLOCK) as clients:
        yield ready(holding(lambda: Lock(key=LOCK_NAME, masters=set(clients), auto_release_time=TTL)))


@contextmanager
def kazoo_client() -> Iterator[Any]:
    """Start a session of ZooKeeper, and end it."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=ZOOKEEPER.hosts())
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


OF_REDIS = (
    bare_redis,
    redis_py,
    python_redis_lock,
    tooz(lambda: REDIS.urls()[0].removesuffix("/0")),  # tooz takes the number of the database as an option
    sherlock,
    *ours(REDIS.lock_alias),
)
OF_REDLOCK = (bare_redlock, pottery, *ours(REDLOCK.lock_alias, pairs=PAIRS))
OF_ZOOKEEPER = (
    bare_kazoo,
    kazoo,
    tooz(lambda: f"zookeeper://{ZOOKEEPER.hosts()}", pairs=ZOOKEEPER_PAIRS),  # which uses kazoo's Lock
    *ours(ZOOKEEPER.lock_alias, pairs=ZOOKEEPER_PAIRS),
)
