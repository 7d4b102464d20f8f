"""Redlock's waiters: they sleep until they are called, and look now and then in case nobody calls them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout
from django_distlock.backends.redlock import waiter
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.concurrency.clock import now as monotonic
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redlock.nodes import Nodes


class Line:
    """Another process holds the lock, past the proxies and without renewals; others stand in line at their node."""

    def __init__(self, nodes: Nodes, name: str, lead: int) -> None:
        self.nodes, self.name = nodes, name
        self.node, self.proxy = nodes.clients[lead], nodes.proxies[lead]
        self.stored = f"redlock:{{{nodes.key(name).text}}}"
        self.pool = ThreadPoolExecutor()
        urls = [f"redis://:{one['password']}@{one['host']}:{one['port']}/0" for one in nodes.servers]
        self._holder = RedlockBackend("five", {"nodes": urls})
        self._grant: Any = None
        # a waiter leaves a lead that does not know the holder
        eventually(self._held_everywhere, "it does not hold it at all nodes")

    def _held_everywhere(self) -> bool:
        if self._grant is not None:
            self.release()
        self._grant = self._holder.try_acquire(self.nodes.claim(self.name))
        return self.nodes.keys() == [1] * 5

    def release(self) -> None:
        self._holder.release(self._grant)

    def wait(self) -> Future[None]:
        """Stand in line until the lock was got, and given back at once."""
        waiting = self.pool.submit(lambda: self.nodes.lock(self.name, timeout=25).acquire().release())

        def can_be_called() -> bool:
            assert not waiting.done(), waiting.exception() or "it waits no more"
            told = self.node.hvals(f"{self.stored}:waiters")
            return any(n for _, n in self.node.pubsub_numsub(*(row.split(b" ")[1] for row in told)))

        eventually(can_be_called, "nobody listens")
        return waiting

    def is_empty(self) -> bool:
        return not self.node.exists(f"{self.stored}:queue")

    def close(self) -> None:
        self.pool.shutdown()
        self._holder.close()


@pytest.fixture
def line(nodes: Nodes, name: str, lead: int) -> Iterator[Line]:
    nodes.connect(f"{name}, connect")
    line = Line(nodes, name, lead)
    yield line
    line.close()


def test_the_node_that_keeps_the_line_falls_silent(line: Line) -> None:
    """It neither calls nor answers; the others are enough."""
    waiting = line.wait()
    line.proxy.blackhole()
    line.release()
    waiting.result(20)
    line.proxy.heal()
    line.nodes.gone()


def test_r22a_a_call_is_no_grant(line: Line) -> None:
    """Redis carries messages on, so any node may say it, at any time: a waiter that is called asks all nodes."""

    def requests() -> list[int]:
        return [sum(both) for both in zip(line.nodes.calls("evalsha"), line.nodes.calls("set"), strict=True)]

    waiting = line.wait()
    asked = requests()
    ((member, row),) = line.node.hgetall(f"{line.stored}:waiters").items()
    assert line.node.publish(row.split(b" ")[1], member) == 1
    eventually(lambda: all(a > b for a, b in zip(requests(), asked, strict=True)), "it does not ask")
    assert not waiting.done()
    assert line.nodes.keys() == [1] * 5
    line.release()
    waiting.result(20)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_r7_who_is_cancelled_before_its_first_answer_leaves_the_line(nodes: Nodes, name: str, line: Line) -> None:
    """It stands there though it never heard so. Whoever else is called in its place costs all others half a second."""
    lock = nodes.lock(name, timeout=20)

    async def main() -> None:
        for proxy in nodes.proxies:
            proxy.swallow(1)
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(eventually, lambda: not line.is_empty(), "it does not stand in line")
        await cancelled(task)

    with pytest.raises(LockTimeout):
        lock.acquire(timeout=2)  # so it joins the line at once, and listens on a connection that is there
    nodes.quiet()
    asyncio.run(main())
    eventually(line.is_empty, "it stands in line for ever")
    line.release()


@pytest.mark.tier2
def test_r22a_a_cancel_while_it_begins_to_listen_does_not_shift_the_answers(
    nodes: Nodes, name: str, lead: int, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request on that connection would get the answer of the one before: a refusal that is none, or a vote."""
    node = nodes.engine._nodes.all[lead]
    monkeypatch.setattr(node, "deaf_until", monotonic() + 60)
    monkeypatch.setattr(waiter, "NEXT", 2.0)  # the network falls silent between two of its requests
    monkeypatch.setattr(waiter, "LONGEST_PAUSE", 2.0)

    async def main() -> None:
        task = asyncio.create_task(nodes.lock(name, timeout=60).aacquire())
        await asyncio.to_thread(eventually, lambda: not line.is_empty(), "nobody waits")
        await asyncio.to_thread(nodes.quiet)
        line.proxy.blackhole()
        node.deaf_until = 0.0
        await asyncio.to_thread(eventually, lambda: any(c.subscribed for c in node.pool._connections), "it is deaf")
        await cancelled(task)

    asyncio.run(main())
    assert [(len(late.due), late.link.owed) for late in node._late] == []
    line.proxy.heal()
    line.release()
