"""Redis: redis-py's own client, the locks that are built on it, and ours."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from benchmarks.entries import ours
from benchmarks.entries.base import Entry
from benchmarks.entries.peers import Tooz
from benchmarks.servers import Redis

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = Redis.lock_alias
TTL = 30  # seconds, for everyone
SPIN = 0.001
COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Peer(Entry):
    """An entry with a redis-py client of its own."""

    def open(self) -> None:
        """Connect."""
        self.client = Redis.clients()[0]
        self.client.ping()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


class Bare(Peer):
    """SET NX PX and a script that compares and deletes, tried again after 1 ms: the measure for the group.

    It has no queue and no fence, and nobody renews it.
    """

    label = "bare redis-py, spin 1 ms"

    def open(self) -> None:
        """Connect and load the script."""
        super().open()
        self.script = self.client.script_load(COMPARE_AND_DELETE)
        self.key, self.token = f"bare:{self.name}", uuid.uuid4().hex

    def cycle(self, body: Callable[[], object]) -> None:
        """Own the key while ``body`` runs."""
        while not self.client.set(self.key, self.token, nx=True, px=TTL * 1000):
            time.sleep(SPIN)
        body()
        if not self.client.evalsha(self.script, 1, self.key, self.token):
            raise RuntimeError("bare redis-py lost the key")


class RedisPy(Peer):
    """redis-py's Lock as its page shows it."""

    label = "redis-py Lock"
    quick = False

    def cycle(self, body: Callable[[], object]) -> None:
        """Poll every 100 ms, which is its default."""
        with self.client.lock(f"redis-py:{self.name}", timeout=TTL):
            body()


class DjangoRedis(Entry):
    """The lock of a django-redis cache as its page shows it."""

    label = "django-redis cache.lock"
    repeated = quick = False

    def open(self) -> None:
        """Make the cache that CACHES would make."""
        from django_redis.cache import RedisCache

        self.cache = RedisCache(Redis.urls()[0], {"OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"}})

    def close(self) -> None:
        """Close its connections."""
        self.cache.client.get_client().connection_pool.disconnect()

    def cycle(self, body: Callable[[], object]) -> None:
        """Poll every 100 ms, which is its default."""
        with self.cache.lock(self.name, timeout=TTL):
            body()


class PythonRedisLock(Peer):
    """python-redis-lock as its page shows it: the one peer that is woken."""

    label = "python-redis-lock"

    def open(self) -> None:
        """Import the peer and connect."""
        import redis_lock

        self.lock = redis_lock.Lock
        super().open()

    def cycle(self, body: Callable[[], object]) -> None:
        """Wait in a blocking pop."""
        with self.lock(self.client, self.name, expire=TTL):
            body()


class Pottery(Peer):
    """pottery's Redlock with one master."""

    label = "pottery Redlock, one master"
    repeated = quick = False

    def open(self) -> None:
        """Import the peer and connect."""
        from pottery import Redlock

        self.redlock = Redlock
        super().open()

    def cycle(self, body: Callable[[], object]) -> None:
        """Poll after up to 200 ms, as it always does."""
        with self.redlock(key=self.name, masters={self.client}, auto_release_time=TTL):
            body()


class Sherlock(Peer):
    """sherlock as its page shows it."""

    label = "sherlock"
    repeated = quick = False

    def open(self) -> None:
        """Import the peer and connect."""
        from sherlock import RedisLock

        self.lock = RedisLock
        super().open()

    def cycle(self, body: Callable[[], object]) -> None:
        """Poll every 100 ms, which is its default."""
        with self.lock(f"sherlock:{self.name}", client=self.client, expire=TTL, timeout=TTL):
            body()


class ToozRedis(Tooz):
    """tooz, which uses redis-py's Lock."""

    def url(self) -> str:
        """Leave out the number of the database, which tooz takes as an option."""
        return Redis.urls()[0].removesuffix("/0")


class Ours(ours.Ours):
    """The queue and the lease in Redis."""

    alias = ALIAS


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    alias = ALIAS


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    alias = ALIAS


ENTRIES: tuple[type[Entry], ...] = (
    Bare,
    RedisPy,
    DjangoRedis,
    PythonRedisLock,
    Pottery,
    ToozRedis,
    Sherlock,
    Ours,
    OursReused,
    OursAsync,
)
