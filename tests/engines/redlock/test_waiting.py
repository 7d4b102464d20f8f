"""Redlock's waiters: they sleep until they are called, and look now and then in case nobody calls them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout
from django_distlock.backends.redis.connection import PENDING
from django_distlock.backends.redlock import waiter
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey
    from django_distlock.records import Grant
    from tests.engines.redlock.nodes import Nodes

CALLED = 0.2  # seconds that it may take when one has been called; a waiter that nobody calls looks every two


class Stranger:
    """As another process: a backend of its own, past the proxies, without renewals."""

    def __init__(self, nodes: Nodes, key: LockKey) -> None:
        urls = [f"redis://:{one['password']}@{one['host']}:{one['port']}/0" for one in nodes.servers]
        self.backend = RedlockBackend("five", {"nodes": urls})
        self.key = key
        self._grants: list[Grant] = []

    def acquire(self) -> None:
        """Hold it at all five nodes. Where connecting takes long, a majority is enough for a holder; and a waiter then
        leaves a lead that does not know the holder."""

        def everywhere() -> bool:
            while self._grants:
                self.release()
            claim = Claim(key=self.key, ttl=60.0, token=new_token(), answer_by=monotonic() + 5)
            grant = self.backend.try_acquire(claim)
            assert grant is not None
            self._grants.append(grant)
            return all(vote is not None and vote.reply not in (None, PENDING) for vote in grant.session.votes)

        eventually(everywhere, "it does not hold it at all nodes")

    def release(self) -> None:
        self.backend.release(self._grants.pop())


@pytest.fixture
def stranger(nodes: Nodes, key: LockKey) -> Iterator[Stranger]:
    """It holds the lock."""
    stranger = Stranger(nodes, key)
    stranger.acquire()
    yield stranger
    stranger.backend.close()


class Line:
    """The waiting line at its node."""

    def __init__(self, nodes: Nodes, name: str, key: LockKey, lead: int) -> None:
        self.nodes, self.name, self.node = nodes, name, nodes.clients[lead]
        self.proxy = nodes.proxies[lead]
        self.stored = f"redlock:{{{key.text}}}"
        self.pool = ThreadPoolExecutor()

    def wait(self) -> Future[float]:
        """Stand in line; when the lock was got, and it is given back at once."""

        def work() -> float:
            with self.nodes.lock(self.name, timeout=25):
                return monotonic()

        waiting = self.pool.submit(work)
        self.listening(waiting)
        return waiting

    def listening(self, waiting: Future[Any]) -> None:
        """Wait until somebody stands in line who can be called there."""

        def settled() -> bool:
            assert not waiting.done(), waiting.exception() or "it waits no more"
            told = self.node.hvals(f"{self.stored}:waiters")
            return any(n for _, n in self.node.pubsub_numsub(*(row.split(b" ")[1] for row in told)))

        eventually(settled, "nobody listens")

    def is_empty(self) -> bool:
        return not self.node.exists(f"{self.stored}:queue")


@pytest.fixture
def line(nodes: Nodes, name: str, key: LockKey, lead: int) -> Iterator[Line]:
    nodes.connect(f"{name}, connect")
    line = Line(nodes, name, key, lead)
    yield line
    line.pool.shutdown()


@pytest.mark.alone
def test_r4_who_is_called_has_it_at_once(stranger: Stranger, line: Line) -> None:
    for _ in range(3):
        waiting = line.wait()
        released = monotonic()
        stranger.release()
        within(waiting.result(10) - released, CALLED)
        line.nodes.gone()
        stranger.acquire()
    stranger.release()


def test_the_node_that_keeps_the_line_falls_silent(stranger: Stranger, line: Line) -> None:
    """It neither calls nor answers; the others are enough."""
    waiting = line.wait()
    line.proxy.blackhole()
    stranger.release()
    waiting.result(20)
    line.proxy.heal()
    line.nodes.gone()


def test_r22a_a_call_is_no_grant(stranger: Stranger, line: Line) -> None:
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
    stranger.release()
    waiting.result(20)


def test_r7_who_is_cancelled_before_its_first_answer_leaves_the_line(
    nodes: Nodes, name: str, stranger: Stranger, line: Line
) -> None:
    """It stands there though it never heard so. Whoever else is called in its place costs all others half a second."""
    lock = nodes.lock(name, timeout=20)

    async def cancelled() -> None:
        for proxy in nodes.proxies:
            proxy.swallow(1)
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(eventually, lambda: not line.is_empty(), "it does not stand in line")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(LockTimeout):
        lock.acquire(timeout=2)  # so it joins the line at once, and listens on a connection that is there
    nodes.quiet()
    asyncio.run(cancelled())
    eventually(line.is_empty, "it stands in line for ever")
    stranger.release()


@pytest.mark.tier2
def test_r22a_a_cancel_while_it_begins_to_listen_does_not_shift_the_answers(
    nodes: Nodes, name: str, lead: int, stranger: Stranger, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request on that connection would get the answer of the one before: a refusal that is none, or a vote."""
    engine: Any = registry.entry(nodes.using).backend
    node, proxy = engine._nodes.all[lead], nodes.proxies[lead]
    monkeypatch.setattr(node, "deaf_until", monotonic() + 60)
    monkeypatch.setattr(waiter, "NEXT", 2.0)  # the network falls silent between two of its requests
    monkeypatch.setattr(waiter, "LONGEST_PAUSE", 2.0)

    async def main() -> None:
        task = asyncio.create_task(nodes.lock(name, timeout=60).aacquire())
        await asyncio.to_thread(eventually, lambda: not line.is_empty(), "nobody waits")
        await asyncio.to_thread(nodes.quiet)
        proxy.blackhole()
        node.deaf_until = 0.0
        await asyncio.to_thread(eventually, lambda: any(c.subscribed for c in node.pool._connections), "it is deaf")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [(len(late.due), late.link.owed) for late in node._late] == []
    proxy.heal()
    stranger.release()
