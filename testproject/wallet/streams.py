"""The Redis that carries the transfers."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import quote

from django.core.management.base import CommandError

from testproject.databases import services

STREAM = "wallet-transfers"


def redis_url() -> str:
    """Of the first private Redis server. CommandError without one, or without FastStream."""
    if find_spec("faststream") is None or find_spec("redis") is None:
        raise CommandError("The consumer needs FastStream: run `make venv`, or install faststream[redis].")
    server = services().get("redis1")
    if server is None:
        raise CommandError("The consumer needs Redis and no server is running: run `make services`.")
    return f"redis://:{quote(server['password'], safe='')}@{server['host']}:{server['port']}/0"
