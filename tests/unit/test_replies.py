"""Replies: tasks and threads wait for one socket in turn, and an event loop keeps watching it."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors
import socket
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import clock
from django_distlock.concurrency.sockets import Replies
from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair:
    """Our end of a connection, and the server's."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.replies = Replies()

    async def answered(self, until: float = math.inf) -> bool:
        return await self.replies.apoll(self.ours.fileno(), until)

    async def exchange(self) -> None:
        self.theirs.send(b"reply")
        assert await self.answered(clock.now() + PATIENCE)
        self.read()

    def read(self) -> bytes:
        return self.ours.recv(100, socket.MSG_DONTWAIT)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    with made.ours, made.theirs:
        yield made
        made.replies.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What event loops began to watch."""
    found: list[int] = []
    plain: Any = asyncio.SelectorEventLoop.add_reader

    def add_reader(loop: Any, fd: int, *args: object) -> None:
        found.append(fd)
        plain(loop, fd, *args)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", add_reader)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def breathe() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_r5_a_loop_watches_on_and_a_reply_is_no_reply_to_what_is_sent_after_it(pair: Pair, begun: list[int]) -> None:
    """The task reads the reply and asks again while the loop has still to say that it has seen the first one. Each
    wait has its own deadline: a timer outlives the wait that set it."""

    async def main() -> None:
        for _ in range(5):
            await pair.exchange()
            assert not await pair.answered(clock.now() + 0.01)
            asyncio.get_running_loop().call_soon(pair.theirs.send, b"reply")
            assert await pair.answered()
            pair.read()

    asyncio.run(main())
    assert len(begun) == 1


def test_r7_a_reply_to_a_cancelled_wait_is_there_for_the_next_one(pair: Pair) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(pair.answered())
        await breathe()
        waiting.cancel()
        pair.theirs.send(b"reply")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await breathe()
        assert await pair.answered()

    asyncio.run(main())


def test_the_number_of_a_socket_that_was_closed_may_be_another_files(pair: Pair) -> None:
    """A driver closes its socket when and where it likes. The loop must not mix it up with what gets its number."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await pair.exchange()
        number = pair.ours.fileno()
        pair.ours.close()
        near, far = socket.socketpair()
        with near, far:
            assert near.fileno() == number
            heard = asyncio.Event()
            loop.add_reader(number, heard.set)
            far.send(b"to another")
            await asyncio.wait_for(heard.wait(), PATIENCE)
            assert loop.remove_reader(number)
        pair.replies.close()
        await breathe()

    asyncio.run(main())


def test_a_reply_to_a_thread_ends_the_watch(pair: Pair, begun: list[int]) -> None:
    """A loop that went on would be woken by each statement of a thread."""

    async def main() -> None:
        await pair.exchange()
        pair.theirs.send(b"to a thread")
        assert await asyncio.to_thread(pair.replies.poll, pair.ours.fileno(), math.inf)
        await breathe()
        assert pair.read() == b"to a thread"
        await pair.exchange()

    asyncio.run(main())
    assert len(begun) == 2


def test_r23_several_loops_in_turn_and_no_descriptor_is_left(pair: Pair) -> None:
    before = descriptors()
    for _ in range(10):
        asyncio.run(pair.exchange())  # and the watch of the loop that was closed goes with the next one
    pair.replies.close()
    assert descriptors() == before
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (first, second, first):
        loop.run_until_complete(pair.exchange())
    first.close()
    second.run_until_complete(pair.exchange())
    second.close()
    pair.replies.close()
    assert descriptors() == before


def test_without_epoll(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")

    async def main() -> None:
        await pair.exchange()
        assert not await pair.replies.apoll(pair.theirs.fileno(), clock.now() + 0.01)
        assert await pair.replies.apoll(-1, math.inf), "it is closed"

    runner = asyncio.SelectorEventLoop(selectors.SelectSelector())
    runner.run_until_complete(main())
    runner.close()
