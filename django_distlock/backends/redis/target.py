"""The Redis server that the settings name, by a cache alias of django-redis or by a URL."""

from __future__ import annotations

import contextlib
from typing import Any

from django_distlock.concurrency import clock

INSTALL = 'pip install "django-distlock[redis]"'


class WrongTarget(Exception):
    """The settings name no server that can be used; the message says why."""


class ClusterNode(WrongTarget):
    """The server is a node of a Redis Cluster: it has the names of its slots, and refuses all others."""

    def __init__(self) -> None:
        super().__init__(
            "A node of a Redis Cluster has only a part of the names, and refuses the others. Use a server without "
            "cluster mode: one, with Sentinel if it has replicas, or several independent ones with Redlock."
        )


def _clustered(connection: Any) -> bool:
    """Does the server run in cluster mode? Its first reply says so, which redis-py keeps from 5.1 on: no request."""
    hello = getattr(connection, "handshake_metadata", None) or {}
    return hello.get(b"mode", hello.get("mode")) in (b"cluster", "cluster")


def _parser() -> Any:
    """The fastest parser that tells pushes from replies: hiredis from 3.2 on with redis-py from 6.0 on."""
    from redis._parsers import _RESP3Parser
    from redis.connection import DefaultParser

    with contextlib.suppress(ImportError):
        from hiredis import PushNotification  # noqa: F401

        if hasattr(DefaultParser, "set_pubsub_push_handler"):
            return DefaultParser
    return _RESP3Parser


def _shown(alias: object) -> str:
    """A cache alias for a message, unless it may be a URL with a password in the wrong place."""
    return "(not shown, it looks like a URL)" if {":", "@"} & set(str(alias)) else repr(alias)


def timed_out(error: BaseException | None) -> bool:
    """Is ``error`` a timeout of redis-py or of a socket?"""
    kinds: list[type[BaseException]] = [TimeoutError]
    with contextlib.suppress(ImportError):
        from redis.exceptions import TimeoutError as RedisTimeout

        kinds.append(RedisTimeout)
    return isinstance(error, tuple(kinds))


class Target:
    """One server, resolved when it is first needed. Exactly one of ``cache`` (an alias in CACHES) and ``url``.

    Options in the URL or of the cache (database, user, TLS, Sentinel) are redis-py's.
    """

    def __init__(self, *, cache: Any = None, url: Any = None) -> None:
        self.cache = cache
        self.url = url
        self._found: tuple[Any, dict[str, Any]] | None = None
        # when it was resolved: importing the driver takes longer than a caller that does not wait has
        self.resolved_at = 0.0

    def __repr__(self) -> str:
        return f"<Target {_shown(self.cache) if self.cache else 'url'}>"  # a URL may carry a password

    def resolve(self) -> tuple[Any, dict[str, Any]]:
        """redis-py's connection class and its arguments. WrongTarget, which names the cure, if there are none."""
        if self._found is None:
            pool = self._of_cache(self.cache) if self.url is None else self._of_url(self.url)
            self._found = pool.connection_class, pool.connection_kwargs
            self.resolved_at = clock.now()
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
            client = getattr(caches[alias], "client", None)
        except InvalidCacheBackendError as error:
            raise WrongTarget(f"the cache {alias!r} cannot be used: {error} Perhaps: {INSTALL}") from error
        if client is None or not hasattr(client, "get_client"):
            raise WrongTarget(f"the cache {alias!r} is not one of django-redis (django_redis.cache.RedisCache).")
        return client.get_client(write=True).connection_pool

    def connect(self, timeout: float) -> Any:
        """redis-py's connection, logged in and speaking RESP3. Each step of connecting has ``timeout`` seconds. Raises
        what redis-py raises, and ClusterNode."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        factory, kwargs = self.resolve()
        options = kwargs | {
            # redis-py's pool would change the timeouts of its connections during maintenance
            **{name: None for name in kwargs if "maint" in name},
            "protocol": 3,
            "parser_class": _parser(),
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
        }
        connection = factory(**options)
        try:
            connection.connect()
            if _clustered(connection):
                raise ClusterNode
        except BaseException as error:
            clustered = isinstance(error, Exception) and _clustered(connection)
            connection.disconnect()
            if clustered:  # such a server also refuses to select a database
                raise ClusterNode from error.__cause__
            raise
        return connection
