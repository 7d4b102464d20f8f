"""A full pool: who waits for a connection gets one, or a place to open one, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.redis import connection as redis_connection
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.connection import ConnectionFailed, pack
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import arun, run
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.backends.redis.connection import Connection, Pool
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
PATIENCE = 10.0


@pytest.fixture
def pool(own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """With room for one connection."""
    monkeypatch.setattr(redis_connection, "MAX_CONNECTIONS", 1)
    pool = RedisBackend("full", {"url": own.url}).pool
    yield pool
    pool.close()


class Caller:
    """A thread that waits for a connection."""

    def __init__(self, pool: Pool) -> None:
        self.got: list[Connection] = []
        queued = len(pool._queue)
        self.thread = threading.Thread(target=lambda: self.got.append(run(pool.get(monotonic() + PATIENCE))))
        self.thread.start()
        eventually(lambda: len(pool._queue) > queued, "it does not wait")

    def connection(self) -> Connection:
        self.thread.join(PATIENCE)
        return self.got[0]


def answers(connection: Connection) -> bool:
    connection.send(pack("PING"))
    return bool(connection.receive(monotonic() + PATIENCE) == b"PONG")


def test_r5_who_gives_up_leaves_the_queue(pool: Pool) -> None:
    connection = run(pool.get(monotonic() + PATIENCE))
    with pytest.raises(ConnectionFailed, match="All connections to Redis are in use") as caught:
        run(pool.get(monotonic() + 0.02))
    assert caught.value.timed_out
    assert not pool._queue
    pool.give(connection)
    assert pool.take() is connection


def test_a_lost_connection_leaves_its_place_to_who_waits(pool: Pool) -> None:
    lost = run(pool.get(monotonic() + PATIENCE))
    waiting = Caller(pool)
    lost.cut()
    pool.discard(lost)
    assert answers(waiting.connection())


@pytest.mark.parametrize("end", ["give", "discard"])
def test_who_will_never_look_again_is_passed_over(pool: Pool, end: str) -> None:
    """A task whose event loop was closed is first in the queue."""
    connection = run(pool.get(monotonic() + PATIENCE))
    gone = task_of_a_closed_loop(pool)
    waiting = Caller(pool)
    getattr(pool, end)(connection)
    assert answers(waiting.connection())
    assert not pool._queue
    assert pool._opening == 0
    gone.get_coro().close()


def task_of_a_closed_loop(pool: Pool) -> Any:
    async def main() -> None:
        tasks.append(asyncio.ensure_future(arun(pool.get(math.inf))))
        await asyncio.sleep(0)  # it begins, and queues

    tasks: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    tasks[0]._log_destroy_pending = False
    return tasks[0]
