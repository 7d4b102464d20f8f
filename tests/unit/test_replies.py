"""Replies: tasks wait for one socket in turn, and an event loop keeps watching it."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import TYPE_CHECKING

import pytest

from django_distlock.concurrency import clock
from django_distlock.concurrency.sockets import Replies
from tests.conftest import PATIENCE
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair:
    """Our end of a connection, and the server's."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.replies = Replies()

    async def answered(self, until: float = math.inf) -> bool:
        return await self.replies.poll(self.ours.fileno(), until)

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


def test_r5_a_loop_watches_on_and_a_reply_is_no_reply_to_what_is_sent_after_it(pair: Pair) -> None:
    """The loop has still to say that it has seen the first one. And a timer outlives the wait that set it."""

    async def main() -> None:
        for _ in range(5):
            await pair.exchange()
            assert not await pair.answered(clock.now() + 0.01)
            asyncio.get_running_loop().call_soon(pair.theirs.send, b"reply")
            assert await pair.answered()
            pair.read()

    asyncio.run(main())


def test_r7_a_reply_to_a_cancelled_wait_is_there_for_the_next_one(pair: Pair) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(pair.answered())
        await turns(3)
        waiting.cancel()
        pair.theirs.send(b"reply")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await turns(3)
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
        await turns(3)

    asyncio.run(main())
