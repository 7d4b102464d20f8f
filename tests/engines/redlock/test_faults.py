"""Redlock when nodes are down, silent, empty, or lose replies: quorum, validity, and no key that stays."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockLost, LockTimeout
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.records import Claim, drift
from tests.conftest import eventually
from tests.engines.redlock.nodes import Nodes, extended, five_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.proxy import Proxy


@pytest.fixture
def patient_nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """No request of theirs is sent a second time while a test lets it wait."""
    with five_nodes(settings, node_timeout=15) as nodes:
        yield nodes
        registry.close()


def test_r19_validity_counts_from_before_the_requests(patient_nodes: Nodes, name: str) -> None:
    """However late they arrive: the nodes may count from any time after they were sent."""
    nodes = patient_nodes
    nodes.connect(name)
    before = [proxy.requests for proxy in nodes.proxies]
    for proxy in nodes.proxies:
        proxy.detain(1)
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(nodes.lock(name, ttl=30).acquire, timeout=20)
        eventually(
            lambda: all(proxy.requests > was for proxy, was in zip(nodes.proxies, before, strict=True)), "not all asked"
        )
        between = monotonic()
        for proxy in nodes.proxies:
            proxy.deliver()
        lease = acquiring.result(30)
    assert lease.valid_until < between + 30 - drift(30)
    lease.release()


def away(proxy: Proxy) -> Any:
    """A server that does not run; the way back."""
    target, proxy.target = proxy.target, ("127.0.0.1", 1)
    proxy.cut()
    return target


@pytest.mark.parametrize("how", ["silent", "down"])
def test_two_of_five_may_fail(nodes: Nodes, name: str, how: str) -> None:
    lock = nodes.lock(name, ttl=30, timeout=20)
    nodes.connect(name)
    struck = nodes.proxies[:2]
    for proxy in struck:
        proxy.blackhole()
    targets = [away(proxy) for proxy in struck] if how == "down" else []
    for _ in range(5):
        lock.acquire().release()
    with lock as lease:
        before = lease.valid_until
        lease.extend(60)
        assert lease.valid_until > before
        lease.ensure_held()
    for proxy, target in zip(struck, targets, strict=False):
        proxy.target = target
    for proxy in struck:
        proxy.heal()
    nodes.gone()


def test_r7_no_vote_stays_on_a_live_node_and_none_is_called_silent(nodes: Nodes, name: str) -> None:
    """Three of five are silent. After the first attempt a new connection to them takes all the time that there is."""
    nodes.connect(name)
    for proxy in nodes.proxies[:3]:
        proxy.blackhole()
    lock = nodes.lock(name, ttl=30, timeout=2)
    for acquire in (lock.acquire, lambda: asyncio.run(lock.aacquire())):
        with pytest.raises(BackendUnavailable, match=r"^3 of 5 Redis nodes did not answer in time: 1, 2, 3\.$") as said:
            acquire()
        assert nodes.servers[0]["password"] not in f"{said.value!r} {said.value.__cause__!r}"
    eventually(lambda: nodes.keys([3, 4]) == [0, 0], "keys are left on the live nodes")
    for proxy in nodes.proxies[:3]:
        proxy.heal()
    nodes.gone()
    lock.acquire(timeout=10).release()


def test_r6_a_late_caller_does_not_take_silence_for_busy(nodes: Nodes, name: str) -> None:
    """Its process paused between two looks at the clock: the time of the nodes is over, and the caller believes that it
    has some left. That the nodes said nothing is not forgotten meanwhile."""
    for proxy in nodes.proxies:
        proxy.blackhole()
    entry = registry.entry(nodes.using)
    claim = Claim(key=entry.key(name), ttl=30, token=new_token(), answer_by=monotonic() + 0.1)
    with pytest.raises(BackendUnavailable, match="5 of 5 Redis nodes did not answer in time"):
        entry.backend.try_acquire(claim, 0.15)


def test_r7_a_grant_whose_reply_is_lost_is_taken_back(patient_nodes: Nodes, name: str) -> None:
    """On a majority: nobody has it then, and nobody's key stays. The naive way leaves three keys for their TTL.

    The silent connections are not healed: a stream that goes on after a gap is one that no network has, and there each
    reply would be taken for that to a later request.
    """
    nodes = patient_nodes
    nodes.connect(name)
    for proxy in nodes.proxies[:3]:
        proxy.swallow(1)
    with pytest.raises((BackendUnavailable, LockTimeout)):
        nodes.lock(name, ttl=30).acquire(timeout=1)
    nodes.gone()


def test_a_node_that_comes_back_empty(nodes: Nodes, name: str) -> None:
    """One that forgot everything is one vote less, until the lock is extended: it votes again. Three that did are a
    loss, the holder is told, and nothing is given again."""
    nodes.connect(name)
    lease = nodes.held(name)
    for client in nodes.clients[:3]:  # one after the other, never two between two renewals
        client.flushall()
        eventually(lambda: extended(lease) and sum(nodes.keys()) == 5, "it was not given the vote again")
    lease.ensure_held()
    for client in nodes.clients[:3]:
        client.flushall()
    with pytest.raises(LockLost):
        eventually(lambda: extended(lease) and False, "it was not lost")
    assert lease.lost
    nodes.gone()
