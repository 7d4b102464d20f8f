"""A stream full of messages, and the consumer processes that empty it."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from django.core.management import call_command
from django.db import connections

from .streams import STREAM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLAIM_AFTER = 0.2  # seconds
SECONDS = 60


class MemberError(Exception):
    """Redis is out of reach, or a consumer did not do its work; what it has logged is on the standard error."""


class Member:
    """A consumer process; killed at the end of the block, when it has nothing to do any more.

    Forked from this one, which has loaded everything: that takes seconds, and there are several.
    """

    def __init__(self, stream: str, way: str, name: str, *, die: bool = False) -> None:
        self.name = name
        options = {"stream": stream, "name": name, "way": way, "claim_after": CLAIM_AFTER, "die": die}
        connections.close_all()  # a connection must not be used on both sides of a fork
        self.process = multiprocessing.get_context("fork").Process(
            target=call_command, args=("consume_transfers",), kwargs=options, daemon=True
        )
        self.process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.join()

    def wait_for_its_death(self) -> None:
        """It is to kill itself between commit and acknowledgement."""
        self.process.join(SECONDS)
        if self.process.exitcode != -signal.SIGKILL:
            raise self.error()

    def error(self) -> MemberError:
        status = self.process.exitcode
        return MemberError(f"The consumer {self.name!r} " + ("hangs." if status is None else f"ended with {status}."))


@dataclass(frozen=True)
class Stream:
    name: str
    client: Any

    def is_empty(self) -> bool:
        """Whether every message was delivered and acknowledged."""
        (group,) = self.client.xinfo_groups(self.name)
        newest = self.client.xinfo_stream(self.name)["last-generated-id"]
        return group["last-delivered-id"] == newest and not group["pending"]

    def wait_until_empty(self, members: Sequence[Member]) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.is_empty():
            if ended := [member for member in members if not member.process.is_alive()]:
                raise ended[0].error()
            if time.monotonic() > deadline:
                raise MemberError(f"There were messages left after {SECONDS} s.")
            time.sleep(0.02)


@contextmanager
def filled_stream(url: str, bodies: Sequence[dict[str, Any]]) -> Iterator[Stream]:
    """A stream with these messages, in this order; removed at the end, or by Redis if this process is killed.

    Without it the consumers end by themselves.
    """
    import redis

    name = f"{STREAM}-{uuid.uuid4()}"
    with redis.Redis.from_url(url) as client:
        try:
            asyncio.run(publish(url, name, bodies))
            client.expire(name, 10 * SECONDS)
            yield Stream(name, client)
            client.delete(name)
        except redis.ConnectionError as error:
            raise MemberError(f"Redis does not answer ({error}): run `make services`.") from error


async def publish(url: str, stream: str, bodies: Sequence[dict[str, Any]]) -> None:
    from faststream.redis import RedisBroker

    async with RedisBroker(url) as broker:
        for body in bodies:
            await broker.publish(body, stream=stream)
