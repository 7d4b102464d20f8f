"""A Sentinel that watches a primary of Redis, and the settings of a project that asks it."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from tests.conftest import eventually
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.redis.server import Own


@contextmanager
def watched(primary: Own, folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A client of the Sentinel, and settings with the cache "watched". The primary has one replica."""
    port = free_port()
    (folder / "sentinel.conf").write_text(
        f"port {port}\ndir {folder}\nsentinel monitor primary 127.0.0.1 {primary.port} 1\n"
    )
    command = ["redis-server", str(folder / "sentinel.conf"), "--sentinel"]
    options = {"CLIENT_CLASS": "django_redis.client.SentinelClient", "SENTINELS": [("127.0.0.1", port)]}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://primary/0", "OPTIONS": options}
    factory = "django_redis.pool.SentinelConnectionFactory"
    with (
        (folder / "sentinel.log").open("ab") as log,
        subprocess.Popen(command, stdout=log) as process,
        Redis(port=port) as sentinel,
    ):
        try:
            eventually(lambda: _replicas(sentinel) == 1, "Sentinel knows no replica")
            yield (
                sentinel,
                {"DJANGO_REDIS_CONNECTION_FACTORY": factory, "CACHES": {**settings.CACHES, "watched": cache}},
            )
        finally:
            process.terminate()


def _replicas(sentinel: Any) -> int:
    try:
        return int(sentinel.sentinel_master("primary")["num-slaves"])
    except RedisError:  # it does not answer yet
        return 0


def fails_over(sentinel: Any) -> bool:
    """Has Sentinel begun to promote the replica?"""
    try:
        sentinel.execute_command("SENTINEL", "FAILOVER", "primary")
    except RedisError:  # NOGOODSLAVE: it has not asked the replica yet how it is
        return False
    return True
