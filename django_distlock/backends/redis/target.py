"""The Redis server that the settings name, by a cache alias or by a URL."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from django_distlock.backends.base import IDLE
from django_distlock.concurrency import clock

from .connection import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INSTALL = 'pip install "django-distlock[redis]"'


class WrongTarget(ImproperlyConfigured):
    """The settings name no server that can be used; the message says why."""


def clustered(connection: Any) -> bool:
    """Does the server run in cluster mode? Its first reply says so, which redis-py keeps from 5.1 on: no request."""
    hello = getattr(connection, "handshake_metadata", None) or {}
    return hello.get(b"mode", hello.get("mode")) in (b"cluster", "cluster")


def _shown(alias: object) -> str:
    """A cache alias for a message, unless it may be a URL with a password in the wrong place."""
    return "(not shown, it looks like a URL)" if {":", "@"} & set(str(alias)) else repr(alias)


class Target:
    """One server, resolved when it is first needed. Exactly one of ``cache`` (an alias in CACHES) and ``url``.

    Options in the URL or of the cache (database, user, TLS, Sentinel) are redis-py's.
    """

    def __init__(self, *, cache: Any = None, url: Any = None) -> None:
        self.cache = cache
        self.url = url
        self._found: tuple[Any, dict[str, Any]] | None = None
        # a node of a Redis Cluster, as far as is known
        self.clustered = False
        # of the client for operators
        self._pool: Any = None
        self._used_at = 0.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Target:
        """The one that the OPTIONS name."""
        url = options.get("url")
        return cls(url=url) if url is not None else cls(cache=options.get("cache", "default"))

    def __repr__(self) -> str:
        return f"<Target {_shown(self.cache) if self.cache else 'url'}>"  # a URL may carry a password

    def resolve(self) -> tuple[Any, dict[str, Any]]:
        """redis-py's connection class and its arguments. WrongTarget, which names the cure, if there are none."""
        if self._found is None:
            pool = self._of_cache(self.cache) if self.url is None else self._of_url(self.url)
            self._found = pool.connection_class, pool.connection_kwargs
        return self._found

    @staticmethod
    def _of_url(url: object) -> Any:
        try:
            from redis import ConnectionPool
        except ImportError as error:
            raise WrongTarget(f"redis-py is not installed. Run: {INSTALL}") from error
        if not isinstance(url, str):
            raise WrongTarget(f"OPTIONS['url'] must be a str, not {type(url).__name__}.")
        with contextlib.suppress(ValueError):  # whose message may quote a part of the password
            return ConnectionPool.from_url(url)
        raise WrongTarget(
            "OPTIONS['url'] is no Redis URL: redis://, rediss:// or unix://, a user and a password percent-encoded."
        )

    @staticmethod
    def _of_cache(alias: object) -> Any:
        from django.core.cache import caches
        from django.core.cache.backends.base import InvalidCacheBackendError

        if not isinstance(alias, str):
            raise WrongTarget(f"OPTIONS['cache'] must be a str, an alias in CACHES, not {type(alias).__name__}.")
        if alias not in caches.settings:
            raise WrongTarget(f"the cache {_shown(alias)} cannot be used: CACHES has no such alias.")
        try:
            # django-redis has its client in "client", Django's own RedisCache in "_cache"
            client: Any = getattr(caches[alias], "client", None) or getattr(caches[alias], "_cache", None)
        except (InvalidCacheBackendError, ImportError) as error:
            raise WrongTarget(f"the cache {alias!r} cannot be used: {error} Perhaps: {INSTALL}") from error
        if not hasattr(client, "get_client"):
            raise WrongTarget(f"the cache {alias!r} is not one in Redis (django-redis, or Django's own RedisCache).")
        return client.get_client(write=True).connection_pool

    def _arguments(self, timeout: float) -> tuple[Any, dict[str, Any]]:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        factory, kwargs = self.resolve()
        changes = {
            # redis-py's pool would change the timeouts of its connections during maintenance
            **{name: None for name in kwargs if "maint" in name},
            "protocol": 3,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
        }
        return factory, kwargs | changes

    def at(self, host: str, port: int) -> Target:
        """Another server with the same options; ``host`` is empty if it is the same one."""
        from redis.connection import Connection, UnixDomainSocketConnection

        factory, kwargs = self.resolve()
        other = Target(cache=self.cache, url=self.url)
        where = {"host": host or kwargs.get("host", "localhost"), "port": port}
        other._found = Connection if factory is UnixDomainSocketConnection else factory, kwargs | where
        return other

    def connect(self, timeout: float, **options: Any) -> Any:
        """redis-py's connection, logged in and speaking RESP3. Each step of connecting has ``timeout`` seconds. Raises
        what redis-py raises."""
        factory, arguments = self._arguments(timeout)
        connection = factory(**arguments | options)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    @contextlib.contextmanager
    def client(self, timeout: float) -> Iterator[Any]:
        """redis-py's own client, for operators. Its errors are ConnectionFailed."""
        from redis import ConnectionPool, Redis
        from redis.exceptions import RedisError

        if (pool := self._pool) is None:
            factory, arguments = self._arguments(timeout)
            pool = self._pool = ConnectionPool(factory, **arguments)
        self._used_at = clock.now()
        try:
            client = Redis(connection_pool=pool, single_connection_client=True)
            self.clustered = clustered(client.connection)
            try:
                yield client
            finally:
                client.close()  # its connection stays open in the pool
        except (RedisError, OSError) as error:
            raise ConnectionFailed(f"The request to Redis failed: {error}") from error

    def rest(self, now: float) -> bool:
        """Close what :meth:`client` has opened if nobody has used it for a while. False if nothing is open."""
        if self._pool is not None and now - self._used_at > IDLE:
            self.close()
        return self._pool is not None

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.disconnect(inuse_connections=False)
