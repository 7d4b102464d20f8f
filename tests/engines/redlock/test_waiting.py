"""Waiters queue at one node, the lead, and sleep until they are called; now and then they look by themselves."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout
from django_distlock.backends.redlock.backend import RedlockBackend
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redlock.conftest import Nodes


class Line:
    """Another process holds the lock, past the proxies and without renewals; others queue at the lead."""

    def __init__(self, nodes: Nodes, name: str, lead: int) -> None:
        self.nodes, self.name = nodes, name
        self.node, self.proxy = nodes.clients[lead], nodes.proxies[lead]
        self.stored = f"redlock:{{{nodes.key(name).text}}}"
        self.pool = ThreadPoolExecutor()
        self.holder = RedlockBackend("five", {"nodes": nodes.direct_urls})
        self._grant: Any = None
        # a waiter leaves a lead that does not know the holder
        eventually(self._held_everywhere, "it does not hold it at all nodes")

    def _held_everywhere(self) -> bool:
        if self._grant is not None:
            self.release()
        self._grant = self.holder.try_acquire(self.nodes.claim(self.name))
        return self.nodes.keys() == [1] * 5

    def release(self) -> None:
        self.holder.release(self._grant)

    def channels(self) -> list[bytes]:
        """The channels of the waiters that can be called."""
        told = [row.split(b" ")[2] for row in self.node.hvals(f"{self.stored}:waiters")]
        return [channel for channel, listeners in self.node.pubsub_numsub(*told) if listeners]

    def wait(self) -> Future[None]:
        """Queue until the lock was got, and release it at once."""
        waiting = self.pool.submit(lambda: self.nodes.lock(self.name, timeout=25).acquire().release())

        def can_be_called() -> bool:
            assert not waiting.done(), waiting.exception() or "it waits no more"
            return bool(self.channels())

        eventually(can_be_called, "nobody listens")
        return waiting

    def is_empty(self) -> bool:
        return not self.node.exists(f"{self.stored}:queue")

    def close(self) -> None:
        self.pool.shutdown()
        self.holder.close()


@pytest.fixture
def line(nodes: Nodes, name: str, lead: int) -> Iterator[Line]:
    nodes.connect(f"{name}, connect")
    line = Line(nodes, name, lead)
    yield line
    line.close()


@pytest.mark.parametrize("how", ["silent", "down"])
def test_the_lead_is_gone(line: Line, nodes: Nodes, lead: int, how: str) -> None:
    """It neither calls nor answers; the others are enough."""
    waiting = line.wait()
    with nodes.silent(lead) if how == "silent" else nodes.down(lead):
        line.release()
        waiting.result(20)
    nodes.gone()


def test_a_lead_that_does_not_know_the_holder_is_left(line: Line, nodes: Nodes) -> None:
    """It came back empty. No release is ever noticed there; at the next node it is."""
    waiting = line.wait()
    line.node.flushdb()
    others = [client for client in nodes.clients if client is not line.node]
    queue = f"{line.stored}:queue"
    eventually(lambda: any(client.exists(queue) for client in others), "it does not queue at another node")
    assert not waiting.done()
    line.release()
    waiting.result(20)
    nodes.gone()


def test_r22a_a_call_is_no_grant(line: Line) -> None:
    """Redis carries messages on, so any node may say it, at any time: a waiter that is called asks all nodes."""

    waiting = line.wait()
    asked = line.nodes.calls("evalsha")
    ((who, row),) = line.node.hgetall(f"{line.stored}:waiters").items()
    assert line.node.publish(row.split(b" ")[2], who + b" 7 7") == 1
    eventually(
        lambda: all(now > was for now, was in zip(line.nodes.calls("evalsha"), asked, strict=True)), "it does not ask"
    )
    assert not waiting.done()
    assert line.nodes.keys() == [1] * 5
    line.release()
    waiting.result(20)


def test_a_waiter_that_is_called_and_does_not_come_is_passed_over(line: Line, nodes: Nodes) -> None:
    """The lead gave it its vote; the next one wins with those of the others."""
    waiting = line.wait()
    (channel,) = line.channels()
    stored = line.stored
    # as a process that is stopped would: first in the queue, and its listener is connected
    line.node.zadd(f"{stored}:queue", {b"xstopped": 1.0})
    line.node.hset(f"{stored}:waiters", "xstopped", b"0 60000 " + channel + b" {}")
    line.release()
    waiting.result(20)
    assert line.node.hexists(f"{stored}:held", "xstopped")
    line.node.delete(f"{stored}:held")
    nodes.gone()


def test_r7_who_is_cancelled_before_its_first_answer_leaves_the_queue(nodes: Nodes, name: str, line: Line) -> None:
    """It stands there though it never heard so. Whoever else is called in its place costs all others two seconds."""
    lock = nodes.lock(name, timeout=20)

    async def main() -> None:
        for proxy in nodes.proxies:
            proxy.swallow(1)
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(eventually, lambda: not line.is_empty(), "it does not queue")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(LockTimeout):
        lock.acquire(timeout=2)  # so it queues at once, and listens already
    nodes.quiet()
    asyncio.run(main())
    eventually(line.is_empty, "it stays in the queue")
    line.release()


def test_one_connection_listens_for_all_waiters(line: Line, nodes: Nodes) -> None:
    """And all of them are in the queue."""
    names = [f"{line.name}, {number}" for number in range(12)]
    leads = {name: nodes.clients[nodes.lead(name)] for name in names}
    held = [line.holder.try_acquire(nodes.claim(name), 10) for name in names]
    pool = ThreadPoolExecutor(len(names))
    waiting = [pool.submit(lambda name=name: nodes.lock(name, timeout=25).acquire().release()) for name in names]

    queues = {name: f"redlock:{{{nodes.key(name).text}}}:queue" for name in names}
    eventually(lambda: all(leads[name].exists(queues[name]) for name in names), "they do not queue")
    for client in nodes.clients:
        assert len(client.pubsub_channels("distlock:*")) <= 1
    for grant in held:
        line.holder.release(grant)
    for each in waiting:
        each.result(25)
    pool.shutdown()
    line.release()
