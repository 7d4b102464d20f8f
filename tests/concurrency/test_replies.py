"""Replies: tasks and threads wait for one socket in turn, and an event loop keeps watching it."""

from __future__ import annotations

import asyncio
import math
import os
import select
import selectors
import socket
import time
from typing import TYPE_CHECKING

import pytest

from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.sockets import READY, Replies
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 10.0


class Pair:
    """Our end of a connection, and the server's."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.replies = Replies()

    async def answered(self, seconds: float = PATIENCE) -> bool:
        return await self.replies.apoll(self.ours.fileno(), monotonic() + seconds)

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
    plain = asyncio.SelectorEventLoop.add_reader

    def add_reader(loop: asyncio.SelectorEventLoop, fd: int, *args: object) -> None:
        found.append(fd)
        plain(loop, fd, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", add_reader)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def breathe() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_loop_begins_to_watch_once_for_many_replies(pair: Pair, begun: list[int]) -> None:
    async def main() -> None:
        for number in range(20):
            asyncio.get_running_loop().call_later(0.001 * (number % 3), pair.theirs.send, b"reply")
            assert await pair.answered()
            assert pair.read() == b"reply"

    asyncio.run(main())
    assert len(begun) == 1


def test_a_reply_is_no_reply_to_what_is_sent_after_it(pair: Pair) -> None:
    """The task reads the reply and asks again while the loop has still to say that it has seen the first one."""

    async def main() -> None:
        pair.theirs.send(b"first")
        assert await pair.answered()
        pair.read()
        assert not await pair.answered(0.05)
        pair.theirs.send(b"second")
        assert await pair.answered()

    asyncio.run(main())


def test_r5_each_wait_has_its_own_deadline(pair: Pair) -> None:
    """A timer outlives the wait that set it: a later wait may end before it, or after it."""

    async def main() -> None:
        for seconds in (PATIENCE, 0.05, 0.01, 0.1, 0.03):
            if seconds == PATIENCE:
                pair.theirs.send(b"reply")
                assert await pair.answered(seconds)
                pair.read()
                continue
            began = time.monotonic()
            assert not await pair.answered(seconds)
            within(time.monotonic() - began, seconds + 0.05, least=seconds)
        asyncio.get_running_loop().call_later(0.15, pair.theirs.send, b"reply")
        assert await pair.replies.apoll(pair.ours.fileno(), math.inf)

    asyncio.run(main())


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


def test_r7_cancelled_between_the_reply_and_its_turn(pair: Pair) -> None:
    """The loop has seen the reply, and sees each one once; the task was cancelled before it went on."""

    async def main() -> None:
        waiting = asyncio.ensure_future(pair.answered())
        await breathe()
        watch = pair.replies._watch
        assert watch is not None
        pair.theirs.send(b"reply")
        watch._notice()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await pair.answered(), "the reply is still there"

    asyncio.run(main())


def test_the_number_of_a_socket_that_was_closed_may_be_another_files(pair: Pair) -> None:
    """A driver closes its socket when and where it likes. The loop must not mix it up with what gets its number."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pair.theirs.send(b"reply")
        assert await pair.answered()
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
        pair.theirs.send(b"to the task")
        assert await pair.answered()
        pair.read()
        pair.theirs.send(b"to a thread")
        assert await asyncio.to_thread(pair.replies.poll, pair.ours.fileno(), monotonic() + PATIENCE)
        await breathe()
        assert pair.read() == b"to a thread"
        assert pair.replies._watch is not None
        assert pair.replies._watch.ended
        pair.theirs.send(b"to the task")
        assert await pair.answered()

    asyncio.run(main())
    assert len(begun) == 2


def test_several_loops_in_turn(pair: Pair) -> None:
    async def once() -> None:
        pair.theirs.send(b"reply")
        assert await pair.answered()
        pair.read()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (first, second, first):
        loop.run_until_complete(once())
    first.close()
    second.run_until_complete(once())
    second.close()


def test_r23_no_descriptor_is_left(pair: Pair) -> None:
    async def main(close: bool) -> None:
        pair.replies.close()  # of a loop that is closed
        before = descriptors()
        pair.theirs.send(b"reply")
        assert await pair.answered()
        pair.read()
        if close:
            pair.replies.close()
            await breathe()
            assert descriptors() == before

    before = descriptors()
    for close in (True, False) * 10:
        asyncio.run(main(close))
    pair.replies.close()
    assert descriptors() == before


def test_without_epoll(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    seen: list[int] = []
    plain = READY.apoll

    async def apoll(fd: int, write: bool, until: float) -> bool:
        seen.append(fd)
        return await plain(fd, write, until)

    monkeypatch.setattr(READY, "apoll", apoll)

    async def main() -> None:
        pair.theirs.send(b"reply")
        assert await pair.answered()
        assert not await pair.replies.apoll(pair.theirs.fileno(), monotonic() + 0.01)
        assert await pair.replies.apoll(-1, monotonic() + PATIENCE), "it is closed"

    runner = asyncio.SelectorEventLoop(selectors.SelectSelector())
    runner.run_until_complete(main())
    runner.close()
    assert len(seen) == 2
