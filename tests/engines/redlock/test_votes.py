"""Redlock's votes: which of them count, which are given again, and what is left at a node that keeps a queue."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockLost
from django_distlock.backends.redis.connection import PENDING
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.concurrency.clock import monotonic
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redlock.nodes import NODES, Nodes, five_nodes, key
from tests.support import services
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey

__all__ = ["key"]
pytestmark = pytest.mark.alone


@pytest.fixture
def nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    """With time to answer: a node that is silent for a tenth of a second is left out, and keeps what it has."""
    with five_nodes(settings, node_timeout=2) as nodes:
        yield nodes
        registry.close()


@pytest.fixture
def hasty_nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    """With a tenth of a second to answer."""
    with five_nodes(settings) as nodes:
        yield nodes
        registry.close()


def majority_for_a_rival(nodes: Nodes, key: LockKey) -> int:
    """How many nodes would grant it to a client that is not of this process."""
    stored = f"redlock:{{{key.text}}}"
    return sum(bool(client.set(stored, "rival", nx=True, px=5000)) for client in nodes.clients)


def extended(lease: Any) -> bool:
    """False if the machine was too slow for the nodes' timeout."""
    try:
        lease.extend(30)
    except BackendUnavailable:
        return False
    return True


def counted(lease: Any) -> bool:
    """Do all votes count? An extension does not wait for all nodes, and those that it has not heard it counts later."""
    return not any(vote.lost or vote.reply is PENDING for vote in lease._grant.session.votes)


def free(nodes: Nodes, key: LockKey, value: bytes) -> None:
    stored = f"redlock:{{{key.text}}}"
    for client in nodes.clients:
        if client.get(stored) == value:
            client.delete(stored)


def test_an_extension_gives_the_vote_again_where_it_was_forgotten(nodes: Nodes, name: str, key: LockKey) -> None:
    """Nodes that forget one after the other, never two between two renewals: nobody else gets a majority."""
    nodes.connect(name)
    with nodes.lock(name, ttl=30) as lease:
        eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
        for client in nodes.clients[:3]:
            client.flushall()
            eventually(lambda: extended(lease) and sum(nodes.keys()) == 5, "a vote is missing")
        assert majority_for_a_rival(nodes, key) == 0
        lease.ensure_held()
    eventually(lambda: nodes.keys() == [0] * 5, f"keys are left: {nodes.keys()}")


def test_r7_a_vote_that_arrives_after_its_release_is_taken_back(nodes: Nodes, name: str) -> None:
    """The release goes out on another connection, while the clean-up looks at the one with the request for the vote."""
    nodes.connect(name)
    entry = registry.entry("five")
    slow, *others = ((entry.key(name).digest[0] + step) % 5 for step in range(1, 5))
    node = entry.backend._nodes.all[slow]  # type: ignore[attr-defined]
    nodes.proxies[slow].detain(1)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: node._late, "the node has voted")
    looked_at = node._late.popleft()
    for other in others:
        nodes.proxies[other].blackhole()
    released = nodes.calls("evalsha")[slow]
    with ThreadPoolExecutor() as pool:
        releasing = pool.submit(lease.release)
        eventually(lambda: nodes.calls("evalsha")[slow] > released, "it is not released")
        nodes.proxies[slow].deliver()
        eventually(lambda: nodes.keys([slow]) == [1], "the vote has not arrived")
        eventually(lambda: looked_at.hear() or not looked_at.due, "the node does not answer")
        node.put(looked_at)
        for other in others:
            nodes.proxies[other].heal()
        releasing.result(10)
    eventually(lambda: nodes.keys() == [0] * 5, f"keys are left: {nodes.keys()}")


@pytest.mark.tier2
def test_a_vote_whose_answer_was_lost_is_given_again(nodes: Nodes, name: str) -> None:
    """As soon as nothing that takes it back is on its way: the lock may then lose two other nodes, like any."""
    nodes.connect(name)
    for proxy in nodes.proxies[:2]:
        proxy.swallow(1, cut=True)
    with nodes.lock(name, ttl=30) as lease:
        eventually(lambda: nodes.keys([2, 3, 4]) == [1] * 3, "it was not granted by the others")
        cleanup = registry.entry("five").backend._cleanup  # type: ignore[attr-defined]
        eventually(lambda: not cleanup.requests, "the lost votes are still taken back", pause=0.2)
        eventually(lambda: extended(lease) and nodes.keys() == [1] * 5, "the votes were not given again", pause=0.2)
        eventually(lambda: extended(lease) and counted(lease), "the votes do not count")
        for client in nodes.clients[2:4]:
            client.flushall()
        lease.extend(30)
        lease.ensure_held()
    eventually(lambda: nodes.keys() == [0] * 5, f"keys are left: {nodes.keys()}")


def test_r22a_a_vote_whose_answer_was_lost_does_not_count(nodes: Nodes, name: str) -> None:
    """It may be taken back at any moment: with it the majority would be one on paper."""
    nodes.connect(name)
    with nodes.lock(name, ttl=30) as lease:
        eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
        grant = lease._grant
        backend = registry.entry("five").backend
        for client in nodes.clients[3:]:
            client.flushall()
        assert backend.verify(grant)
        for vote in grant.session.votes[:2]:
            vote.lost = True
        with pytest.raises(BackendUnavailable):
            backend.verify(grant)
        for vote in grant.session.votes[:2]:
            vote.lost = False


def test_a_vote_that_is_taken_back_is_not_given_again_meanwhile(nodes: Nodes, name: str) -> None:
    """What takes it back is sent for two seconds, and would take the new one."""
    nodes.connect(name)
    nodes.proxies[0].swallow(1, cut=True)
    with nodes.lock(name, ttl=30) as lease:
        cleanup = registry.entry("five").backend._cleanup  # type: ignore[attr-defined]
        eventually(
            lambda: extended(lease) and cleanup.requests and nodes.keys([0]) == [0], "the vote is not taken back"
        )
        given = 0
        for _ in range(10):
            extended(lease)
            time.sleep(0.05)
            there = nodes.keys([0])[0]
            given += there if cleanup.requests else 0  # after that it may be given again
        assert not given


def test_no_vote_is_given_again_by_who_lost_the_majority(nodes: Nodes, name: str) -> None:
    nodes.connect(name)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
    for client in nodes.clients[:3]:
        client.flushall()
    with pytest.raises(LockLost):
        eventually(lambda: extended(lease) and False, "it was not lost", 2)
    eventually(lambda: nodes.keys() == [0] * 5, f"keys are left: {nodes.keys()}")


def test_a_shorter_ttl_counts_though_its_confirmation_is_lost(hasty_nodes: Nodes, name: str, key: LockKey) -> None:
    """The nodes may have been told: from then on the lease must not claim to live longer than the keys do."""
    nodes = hasty_nodes
    nodes.connect(name)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
    nodes.quiet()
    for proxy in nodes.proxies:
        proxy.swallow(1)
    with contextlib.suppress(BackendUnavailable):
        lease.extend(0.4)
    until = monotonic() + 1
    while monotonic() < until:  # or it was renewed in time
        if majority_for_a_rival(nodes, key) >= 3:
            assert lease.lost, f"valid for {lease.valid_until - monotonic()} s, and somebody else has it"
            break
        free(nodes, key, b"rival")
    free(nodes, key, b"rival")
    with contextlib.suppress(LockLost):
        lease.release()


def test_who_got_it_from_the_others_does_not_stay_in_line(nodes: Nodes, name: str, key: LockKey) -> None:
    """The node that keeps the line answers last, and "no". A ghost in line would keep everybody out for GRACE."""
    lock = nodes.lock(name, ttl=30)
    lock.acquire().release()
    lead = key.digest[0] % 5
    stored = f"redlock:{{{key.text}}}"
    eventually(lambda: nodes.keys() == [0] * 5, "keys are left")
    for client in nodes.clients:
        client.set(stored, "somebody", px=5000)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lock.acquire, timeout=4)
        eventually(lambda: nodes.clients[lead].zcard(stored + ":queue") == 1, "it did not join the line")
        nodes.proxies[lead].delay(0.02)
        for index, client in enumerate(nodes.clients):
            if index != lead:
                client.delete(stored)
        waiting.result(5).release()
    began = time.monotonic()
    eventually(lambda: nodes.clients[lead].zcard(stored + ":queue") == 0, "a ghost is in line")
    within(time.monotonic() - began, 0.3, what="a ghost")
    nodes.clients[lead].delete(stored)


def test_a_node_that_was_never_asked_is_owed_nothing(nodes: Nodes, name: str) -> None:
    """Down for a while and 100 locks later: not a hundred commands when it comes back."""
    lock = nodes.lock(name, ttl=30)
    services.stop(NODES[0])
    try:
        for _ in range(100):
            lock.acquire().release()
    finally:
        services.start(NODES[0])
    node = registry.entry("five").backend._nodes.all[0]  # type: ignore[attr-defined]
    before = nodes.calls("eval")[0]

    def back() -> bool:
        lock.acquire().release()
        return bool(node.pool.is_open)

    eventually(back, "it is not asked again")
    assert nodes.calls("eval")[0] - before <= 4


def test_a_thread_that_cannot_be_started_is_tried_again(
    nodes: Nodes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of threads nobody connects; later it must work again, on the same connections."""
    starts = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.endswith("-connect"):
            raise RuntimeError("can't start new thread")
        starts(self)

    lock = nodes.lock(name)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(BackendUnavailable):
        lock.acquire(timeout=0)
    monkeypatch.undo()
    lock.acquire(timeout=2).release()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_closed_in_the_middle_of_a_question(nodes: Nodes, name: str, face: str) -> None:
    """As a test's end does it to a thread that still releases: told so at once, in the words of this package."""
    lock = nodes.lock(name)
    lock.acquire().release()
    backend = registry.entry("five").backend
    for proxy in nodes.proxies:
        proxy.blackhole()
    closing = threading.Timer(0.03, backend.close)  # the nodes have two seconds
    ask = lock.acquire if face == "sync" else lambda timeout: asyncio.run(lock.aacquire(timeout=timeout))
    closing.start()
    with pytest.raises(BackendUnavailable):
        ask(timeout=0)
    closing.join()


@pytest.mark.parametrize(
    "value", [b"tok " + b"[" * 100_000, b'tok {"since":1e999,"name":"\\ud800"}', b"\xff{", b"x", b""]
)
def test_what_others_wrote_is_listed_and_can_be_broken(nodes: Nodes, value: bytes) -> None:
    """Without a TTL on all nodes nobody would ever get that lock. A lock that came in its place meanwhile stays."""
    for client in nodes.clients:
        client.set("redlock:{garbage}", value)
    backend = registry.entry("five").backend
    (info,) = [info for info in backend.inspect() if info.key == "garbage"]
    assert info.holder == "unknown" or b"since" in value
    str(info.holder).encode()
    other = value[:1] + b"ther-0 {}"
    for client in nodes.clients:
        client.set("redlock:{garbage}", other)
    assert not backend.break_lock(info)
    assert [client.get("redlock:{garbage}") for client in nodes.clients] == [other] * 5
    for client in nodes.clients:
        client.set("redlock:{garbage}", value)
    assert backend.break_lock(info)
    assert nodes.keys() == [0] * 5


def test_a_node_that_is_slow_to_connect_breaks_it_too(nodes: Nodes) -> None:
    """The other four are asked without it."""
    for client in nodes.clients:
        client.set("redlock:{garbage}", b"x")
    backend = registry.entry("five").backend
    (info,) = [info for info in backend.inspect() if info.key == "garbage"]
    backend.close()
    nodes.proxies[4].delay(0.05)
    assert backend.break_lock(info)
    assert nodes.keys() == [0] * 5


def test_a_lock_that_is_broken_during_a_renewal_is_not_voted_for_again(
    nodes: Nodes, name: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes have deleted it when they are asked, the others a moment later: the votes would block the next one."""
    nodes.connect(name)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
    nodes.quiet()
    stored = f"redlock:{{{key.text}}}"
    looks = []
    confirmed = RedlockBackend._confirmed

    def broken(backend: RedlockBackend, ballot: Any, *args: Any, **kwargs: Any) -> Any:
        for client in nodes.clients[2:] if looks else nodes.clients[:2]:
            client.delete(stored)
        looks.append((yield from confirmed(backend, ballot, *args, **kwargs)))
        return looks[-1]

    monkeypatch.setattr(RedlockBackend, "_confirmed", broken)
    with pytest.raises(LockLost):
        lease.extend(30)
    assert [look.name for look in looks] == ["GRANTED", "REFUSED"]
    monkeypatch.undo()
    assert nodes.keys() == [0] * 5
