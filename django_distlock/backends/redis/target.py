"""Which Redis server: a cache alias of django-redis, or a URL; and a socket to it, logged in and speaking RESP3."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    import socket

INSTALL = 'pip install "django-distlock[redis]"'
# What belongs to redis-py's own pool and parser, or would retry behind our back.
_NOT_OURS = frozenset(
    {
        "parser_class",
        "protocol",
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "health_check_interval",
        "decode_responses",
        "socket_timeout",
        "socket_connect_timeout",
        "legacy_responses",
        "event_dispatcher",
        "himport_registry",
        "orig_host_address",
        "orig_socket_timeout",
        "orig_socket_connect_timeout",
        "oss_cluster_maint_notifications_handler",
    }
)


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
    """What the server said in its first reply; redis-py keeps it from 5.1 on. It costs no request."""
    told = getattr(connection, "handshake_metadata", None) or {}
    return told.get(b"mode", told.get("mode")) in (b"cluster", "cluster")


def _shown(alias: object) -> str:
    """A cache alias for a message; not what may be a misspelt URL with a password."""
    return "(not shown, it looks like a URL)" if {":", "@"} & set(str(alias)) else repr(alias)


def timed_out(error: BaseException | None) -> bool:
    """Did redis-py, or a socket, wait in vain?"""
    kinds: list[type[BaseException]] = [TimeoutError]
    with contextlib.suppress(ImportError):
        from redis.exceptions import TimeoutError as Silence

        kinds.append(Silence)
    return isinstance(error, tuple(kinds))


class Target:
    """One server, resolved when it is first needed. Exactly one of ``cache`` (an alias in CACHES) and ``url``.

    Options in the URL or of the cache (database, user, TLS, Sentinel) are redis-py's.
    """

    def __init__(self, *, cache: Any = None, url: Any = None) -> None:
        self.cache = cache
        self.url = url
        self._found: tuple[Any, dict[str, Any]] | None = None
        # when it was resolved: importing the driver takes longer than a caller who does not wait has
        self.resolved_at = 0.0

    def __repr__(self) -> str:
        return f"<Target {_shown(self.cache) if self.cache else 'url'}>"  # a URL may carry a password

    def resolve(self) -> tuple[Any, dict[str, Any]]:
        """redis-py's connection class and its arguments. WrongTarget, which names the cure, if that cannot be told."""
        if self._found is None:
            pool = self._of_cache(self.cache) if self.url is None else self._of_url(self.url)
            kwargs = {
                name: value
                for name, value in pool.connection_kwargs.items()
                if name not in _NOT_OURS and not name.startswith("maint")
            }
            self._found = pool.connection_class, kwargs
            self.resolved_at = monotonic()
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

    def connect(self, timeout: float) -> socket.socket:
        """A socket on which the server has accepted us. Each step has ``timeout`` seconds. Raises what redis-py
        raises, and ClusterNode."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        factory, kwargs = self.resolve()
        connection = factory(
            **kwargs, protocol=3, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
        )
        try:
            connection.connect()
            if _clustered(connection):
                raise ClusterNode
        except BaseException as error:
            clustered = isinstance(error, Exception) and _clustered(connection)
            connection.disconnect()
            if clustered:  # it also refuses to select a database
                raise ClusterNode from error.__cause__
            raise
        sock: socket.socket = connection._sock
        connection._sock = None  # from here on it is ours: redis-py would close it with the object
        return sock
