"""What is taken back goes from every node that can be reached, whatever its answer was and whoever was in the way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockLost
from django_distlock.backends.redlock import acquire, backend, rounds, waiter
from django_distlock.backends.redlock.nodes import Node
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.redlock.nodes import Nodes, five_nodes, key
from tests.faults.test_interrupted import TimeLimit, tick
from tests.support.interrupts import interrupted_everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey

__all__ = ["key"]
pytestmark = pytest.mark.alone


@pytest.fixture
def nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    with five_nodes(settings, node_timeout=0.5) as nodes:
        yield nodes
        registry.close()


@pytest.fixture
def engine(nodes: Nodes, name: str) -> Any:
    """The backend of "five", connected to all nodes."""
    nodes.connect(name)
    return registry.entry(nodes.using).backend


def gone(nodes: Nodes) -> None:
    eventually(lambda: nodes.keys() == [0] * 5, "a key is left")


def free(engine: Any) -> None:
    """The background takes one for a moment, too."""
    eventually(lambda: not engine._nodes.places._taken, "a place is taken")


def held(nodes: Nodes, name: str) -> Any:
    """A lease that all nodes have granted."""
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: nodes.keys() == [1] * 5, "somebody has not granted it")
    nodes.quiet()
    return lease


def test_r7_a_node_that_refuses_to_write_is_asked_again(nodes: Nodes, name: str, engine: Any) -> None:
    """As a full disk, a fail-over or a missing replica makes it do, for a moment."""
    lease = held(nodes, name)
    nodes.clients[0].config_set("min-replicas-to-write", 1)
    try:
        lease.release()
        eventually(lambda: nodes.keys() == [1, 0, 0, 0, 0], "it is not released")
    finally:
        nodes.clients[0].config_set("min-replicas-to-write", 0)
    gone(nodes)


def test_r7_a_release_that_could_not_be_sent_is_sent_later(nodes: Nodes, name: str, engine: Any) -> None:
    """The connection was reset before, and for the moment there is no other."""
    lease = held(nodes, name)
    proxy = nodes.proxies[0]
    target, proxy.target = proxy.target, ("127.0.0.1", 1)
    try:
        proxy.cut(reset=True)
        lease.release()
        eventually(lambda: nodes.keys() == [1, 0, 0, 0, 0], "it is not released")
    finally:
        proxy.target = target
    gone(nodes)


def test_r6_a_release_waits_for_the_connections_that_it_needs(
    nodes: Nodes, name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has forgotten the lock, and of those that are connected two are no majority."""
    lease = held(nodes, name)
    nodes.clients[0].flushall()
    connect, opened = Node.open, threading.Event()

    def later(node: Node) -> None:
        assert opened.wait(10)
        connect(node)

    monkeypatch.setattr(Node, "open", later)
    for node in engine._nodes.all[3:]:
        node.close()
    engine._timeout = 10.0
    with ThreadPoolExecutor() as pool:
        releasing = pool.submit(engine.release, lease._grant)
        eventually(lambda: nodes.keys() == [0, 0, 0, 1, 1], "it does not begin")
        opened.set()
        assert releasing.result(10)
    gone(nodes)
    with pytest.raises(LockLost):
        lease.release()


def test_r7_a_renewal_gives_no_vote_after_the_release(
    nodes: Nodes, name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keepalive thread has found that a node has forgotten the lock, and asks it for its vote again."""
    lease = held(nodes, name)
    grant, again = lease._grant, engine._vote_again

    def release() -> None:
        with contextlib.suppress(BackendUnavailable):  # one has forgotten it, and two may not be connected in time
            engine.release(grant)

    def late(*args: Any) -> None:
        asked.set()
        releasing = threading.Thread(target=release)
        releasing.start()
        releasing.join()
        again(*args)

    asked = threading.Event()
    monkeypatch.setattr(engine, "_vote_again", late)
    nodes.clients[0].flushall()
    votes = nodes.calls("set")[0]
    # a renewal does not wait for a node that is not needed, on a busy machine
    eventually(lambda: asked.is_set() or engine.extend(grant, 30) is None or asked.is_set(), "no vote is asked for")
    eventually(lambda: nodes.calls("set")[0] > votes, "the request does not arrive")
    gone(nodes)


def test_r22a_a_vote_that_another_connection_may_lose_does_not_count(nodes: Nodes, name: str, engine: Any) -> None:
    """Its request has no reply yet, on a connection that somebody else has. Lost, that request is taken back, and the
    vote with it: counted, it makes a majority on paper."""
    slow, *others = ((registry.entry("five").key(name).digest[0] + step) % 5 for step in range(1, 5))
    nodes.proxies[slow].swallow(1)
    lease = nodes.lock(name, ttl=30).acquire()
    grant = lease._grant
    eventually(lambda: nodes.keys() == [1] * 5, "somebody has not granted it")
    pipeline = engine._nodes.all[slow]._late.popleft()
    assert engine.extend(grant, 30)
    for other in others[:2]:
        nodes.clients[other].flushall()
    with pytest.raises(BackendUnavailable):
        engine.verify(grant)
    pipeline.node.lose(pipeline, None)
    with pytest.raises(BackendUnavailable):
        engine.verify(grant)
    with contextlib.suppress(BackendUnavailable):
        engine.release(grant)
    gone(nodes)


def test_r7_a_cancel_while_it_subscribes_does_not_shift_the_answers(
    nodes: Nodes, name: str, key: LockKey, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request on that connection would get the answer of the one before: a refusal that is none, or a vote."""
    lead = engine._nodes.all[key.digest[0] % 5]
    for client in nodes.clients:
        client.set(f"redlock:{{{key.text}}}", "somebody", px=30_000)
    lead.deaf_until = monotonic() + 60
    monkeypatch.setattr(waiter, "NEXT", 1.0)  # the network falls silent between two of its requests
    monkeypatch.setattr(waiter, "LONGEST_PAUSE", 1.0)

    async def main() -> None:
        waiting = asyncio.create_task(nodes.lock(name, timeout=20).aacquire())
        queue = nodes.clients[lead.number - 1]
        await asyncio.to_thread(eventually, lambda: queue.zcard(f"redlock:{{{key.text}}}:queue"), "nobody waits")
        await asyncio.to_thread(nodes.quiet)
        nodes.proxies[lead.number - 1].blackhole()
        lead.deaf_until = 0.0
        await asyncio.to_thread(eventually, lambda: any(c.subscribed for c in lead.pool._connections), "it is deaf")
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert [(len(pipeline.due), pipeline.link.owed) for pipeline in lead._late] == []
    nodes.proxies[lead.number - 1].heal()
    for client in nodes.clients:
        client.flushall()


@pytest.mark.tier2
def test_r7_a_time_limit_anywhere_leaves_no_vote(nodes: Nodes, name: str, engine: Any) -> None:
    """An exception of a task queue, and not Ctrl-C: what cleans up must not take it for an outcome."""
    lock, leases = nodes.lock(name, ttl=30, timeout=5), []

    def clean() -> None:
        while leases:
            leases.pop().release()
        tick()
        gone(nodes)
        free(engine)
        assert not engine._claims

    def attempt() -> None:
        leases.append(lock.acquire())

    assert interrupted_everywhere(attempt, clean, acquire, backend, rounds, waiter, error=TimeLimit) > 50


@pytest.mark.tier2
def test_r7_an_interrupt_of_a_release_keeps_no_place(nodes: Nodes, key: LockKey, engine: Any) -> None:
    """There are eight in a process, and without one nothing is sent."""

    def acquire() -> Any:
        return engine.try_acquire(Claim(key=key, ttl=30, token=new_token()), 5)

    def clean() -> None:
        engine.release(grants.pop())  # again, as the manager does: the first one may have been interrupted at once
        free(engine)
        grants.append(acquire())

    grants = [acquire()]
    assert interrupted_everywhere(lambda: engine.release(grants[0]), clean, backend, rounds) > 50
    engine.release(grants.pop())
