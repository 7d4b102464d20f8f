"""Redlock: which votes count when nodes are down, silent, empty or lose replies, and what is taken back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockLost, LockTimeout
from django_distlock.backends.redlock import backend
from django_distlock.backends.redlock.nodes import Node
from django_distlock.backends.redlock.rounds import Round
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.sockets import readable
from django_distlock.records import drift
from tests.conftest import eventually

if TYPE_CHECKING:
    from tests.engines.redlock.nodes import Nodes


def test_r19_validity_counts_from_before_the_requests(patient_nodes: Nodes, name: str) -> None:
    """However late they arrive: the nodes may count from any time after they were sent."""
    nodes = patient_nodes
    nodes.connect(name)
    requests = [proxy.hold("request") for proxy in nodes.proxies]
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(nodes.lock(name, ttl=30).acquire, timeout=20)
        for request in requests:
            request.wait()
        between = monotonic()
        for request in requests:
            request.pass_on()
        lease = acquiring.result(30)
    assert lease.valid_until < between + 30 - drift(30)
    lease.release()


@pytest.mark.parametrize("how", ["silent", "down"])
def test_two_of_five_may_fail(nodes: Nodes, name: str, how: str) -> None:
    nodes.connect(name)
    lock = nodes.lock(name, ttl=30, timeout=20)
    with getattr(nodes, how)(0, 1):
        for _ in range(5):
            lock.acquire().release()
        with lock as lease:
            before = lease.valid_until
            lease.extend(60)
            assert lease.valid_until > before
            lease.ensure_held()
    nodes.gone()


def test_r7_no_vote_stays_on_a_live_node_and_none_is_called_silent(nodes: Nodes, name: str) -> None:
    """Three of five are silent. After the first attempt a new connection to them takes all the time that there is."""
    nodes.connect(name)
    lock = nodes.lock(name, ttl=30, timeout=2)
    said = r"^3 of 5 Redis nodes did not answer in time: 1, 2, 3\.$"
    with nodes.silent(0, 1, 2):
        for acquire in (lock.acquire, lambda: asyncio.run(lock.aacquire())):
            with pytest.raises(BackendUnavailable, match=said) as caught:
                acquire()
            assert nodes.servers[0]["password"] not in f"{caught.value!r} {caught.value.__cause__!r}"
        eventually(lambda: nodes.keys([3, 4]) == [0, 0], "keys are left on the live nodes")
    nodes.gone()
    lock.acquire(timeout=10).release()


def test_r6_a_late_caller_does_not_take_silence_for_busy(nodes: Nodes, name: str) -> None:
    """Its process paused between two looks at the clock: the time of the nodes is over, and the caller believes that it
    has some left."""
    with nodes.silent(*range(5)), pytest.raises(BackendUnavailable, match="5 of 5 Redis nodes did not answer in time"):
        nodes.engine.try_acquire(nodes.claim(name, answer_in=0.1), 0.15)


def test_r5_who_was_late_itself_has_the_lock_that_was_granted_in_time(
    patient_nodes: Nodes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller got no processor from its requests to its deadline. The votes were there, and it gave up."""
    listen, late = Round._listen, threading.Event()

    def sleep_over(asked: Round, until: float) -> None:
        if late.is_set():
            return listen(asked, until)
        late.set()
        eventually(lambda: monotonic() > until, "the clock stands still")
        return eventually(lambda: sum(readable(fd, 0) for fd in asked._by_fd) >= 3, "no majority has answered")

    patient_nodes.connect(name)
    monkeypatch.setattr(Round, "_listen", sleep_over)
    patient_nodes.lock(name).acquire(timeout=0.1).release()
    assert late.is_set()
    patient_nodes.gone()


def test_r7_a_grant_whose_reply_is_lost_is_taken_back(patient_nodes: Nodes, name: str) -> None:
    """On a majority: the naive way leaves three keys for their TTL. The connections are not healed: no network goes on
    with a stream after a gap."""
    patient_nodes.connect(name)
    for proxy in patient_nodes.proxies[:3]:
        proxy.swallow(1)
    with pytest.raises((BackendUnavailable, LockTimeout)):
        patient_nodes.lock(name, ttl=30).acquire(timeout=1)
    patient_nodes.gone()


def test_a_node_that_comes_back_empty(nodes: Nodes, name: str, engine: Any) -> None:
    """It is one vote less, until the lock is extended: it votes again. Three that did are a loss, the holder is told,
    and nothing is given again."""
    lease = nodes.held(name)

    def extended() -> bool:
        with contextlib.suppress(BackendUnavailable):  # too few nodes have answered in time
            lease.extend(30)
            return True
        return False

    for client in nodes.clients[:3]:  # one after the other, never two between two renewals
        client.flushall()
        eventually(lambda: extended() and sum(nodes.keys()) == 5, "it was not given the vote again")
    lease.ensure_held()
    for client in nodes.clients[:3]:
        client.flushall()
    with pytest.raises(LockLost):
        eventually(lambda: extended() and False, "it was not lost")
    assert lease.lost
    nodes.gone()


@contextlib.contextmanager
def refusing_to_write(nodes: Nodes) -> Any:
    """As a full disk, a fail-over or a missing replica makes a node do, for a moment."""
    nodes.clients[0].config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        nodes.clients[0].config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("how", [refusing_to_write, lambda nodes: nodes.down(0, reset=True)], ids=["refused", "reset"])
def test_r7_a_release_that_a_node_has_not_done_is_sent_again(nodes: Nodes, name: str, engine: Any, how: Any) -> None:
    lease = nodes.held(name)
    with how(nodes):
        lease.release()
        eventually(lambda: nodes.keys() == [1, 0, 0, 0, 0], "it is not released")
    nodes.gone()


def test_r6_a_release_waits_for_the_connections_that_it_needs(
    nodes: Nodes, name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has forgotten the lock, and of those that are connected two are no majority."""
    lease = nodes.held(name)
    nodes.clients[0].flushall()
    connect, opened = Node.open, threading.Event()
    monkeypatch.setattr(Node, "open", lambda node: opened.wait(20) and connect(node))
    for node in engine._nodes.all[3:]:
        node.close()
    engine._timeout = 20.0
    with ThreadPoolExecutor() as pool:
        releasing = pool.submit(engine.release, lease._grant)
        eventually(lambda: nodes.keys() == [0, 0, 0, 1, 1], "it does not begin")
        opened.set()
        assert releasing.result(20)
    nodes.gone()
    with pytest.raises(LockLost):
        lease.release()


def test_r7_a_renewal_gives_no_vote_after_the_release(
    nodes: Nodes, name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal has found that a node has forgotten the lock, and asks it for its vote again."""
    grant, again, asked = engine.try_acquire(nodes.claim(name)), engine._vote_again, threading.Event()
    eventually(lambda: nodes.keys() == [1] * 5, "somebody has not granted it")
    nodes.quiet()

    def late(*args: Any) -> None:
        asked.set()
        with ThreadPoolExecutor(1) as pool:  # one has forgotten it, and two may not be connected in time
            pool.submit(engine.release, grant).exception()
        again(*args)

    monkeypatch.setattr(engine, "_vote_again", late)
    nodes.clients[0].flushall()
    votes = nodes.calls("set")[0]
    # a renewal does not wait for a node that is not needed, on a busy machine
    eventually(lambda: asked.is_set() or engine.extend(grant, 60) is None or asked.is_set(), "no vote is asked for")
    eventually(lambda: nodes.calls("set")[0] > votes, "the request does not arrive")
    nodes.gone()


def test_r17_a_lock_that_is_broken_during_a_renewal_is_not_voted_for_again(
    patient_nodes: Nodes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes have deleted it when they are asked, the others a moment later: the votes would block the next one."""
    monkeypatch.setattr(backend, "RENEWAL_PATIENCE", 15.0)
    nodes = patient_nodes
    nodes.connect(name)
    lease = nodes.held(name)
    for client in nodes.clients[:2]:
        client.flushdb()
    votes = nodes.calls("set")
    later = [proxy.hold("request", 2) for proxy in nodes.proxies[2:]]  # the renewal looks twice
    with ThreadPoolExecutor(1) as pool:
        extending = pool.submit(lease.extend, 30)
        for client, held in zip(nodes.clients[2:], later, strict=True):
            held.wait()
            client.flushdb()
            held.pass_on()
        with pytest.raises(LockLost):
            extending.result()
    assert nodes.calls("set") == votes


def test_r7_the_votes_of_a_refused_attempt_are_taken_back(nodes: Nodes, name: str, engine: Any) -> None:
    stored = f"redlock:{{{nodes.key(name).text}}}"
    for client in nodes.clients[:3]:
        client.set(stored, "somebody", px=60_000)
    assert nodes.lock(name, ttl=30).try_acquire(timeout=1) is None
    eventually(lambda: nodes.keys([3, 4]) == [0, 0], "votes are left")
    for client in nodes.clients[:3]:
        client.delete(stored)


def test_r7_a_vote_that_arrives_after_its_release_is_taken_back(
    nodes: Nodes, name: str, lead: int, engine: Any
) -> None:
    """The connection is lost, the release goes out on another one and is faster."""
    slow = (lead + 1) % 5
    proxy, votes = nodes.proxies[slow], nodes.calls("set")[slow]
    proxy.detain(1)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: sum(nodes.keys()) == 4, "the others have not granted it")
    proxy.drop_clients()
    lease.release()
    proxy.deliver()
    eventually(lambda: nodes.calls("set")[slow] > votes, "the vote does not arrive")
    nodes.gone()


def test_r7_so_is_one_whose_connection_the_clean_up_looks_at(nodes: Nodes, name: str, lead: int, engine: Any) -> None:
    """The release goes out on another connection meanwhile."""
    slow, *others = ((lead + step) % 5 for step in range(1, 5))
    node, proxy = engine._nodes.all[slow], nodes.proxies[slow]
    proxy.detain(1)
    lease = nodes.lock(name, ttl=30).acquire()
    eventually(lambda: node._late, "the node has voted")
    looked_at, released = node._late.popleft(), nodes.calls("evalsha")[slow]
    with ThreadPoolExecutor() as pool:
        with nodes.silent(*others):
            releasing = pool.submit(lease.release)
            eventually(lambda: nodes.calls("evalsha")[slow] > released, "it is not released")
            proxy.deliver()
            eventually(lambda: nodes.keys([slow]) == [1], "the vote has not arrived")
            eventually(lambda: looked_at.hear() or not looked_at.due, "the node does not answer")
            node.put(looked_at)
        releasing.result(20)
    nodes.gone()


def test_r22a_a_vote_whose_answer_was_lost_does_not_count(nodes: Nodes, name: str, engine: Any) -> None:
    """It may be taken back at any moment: with it the majority would be one on paper."""
    lease = nodes.held(name)
    grant = lease._grant
    for client in nodes.clients[3:]:
        client.flushall()
    assert engine.verify(grant)
    for vote in grant.session.votes[:2]:
        vote.lost = True
    with pytest.raises(BackendUnavailable):
        engine.verify(grant)
    for vote in grant.session.votes[:2]:
        vote.lost = False
    lease.release()


def test_r22a_a_vote_that_another_connection_may_lose_does_not_count(
    nodes: Nodes, name: str, lead: int, engine: Any
) -> None:
    """Its request has no reply yet, on a connection that somebody else has. Lost, that request is taken back, and the
    vote with it: counted, it makes a majority on paper."""
    slow, *others = ((lead + step) % 5 for step in range(1, 5))
    nodes.proxies[slow].swallow(1)
    grant = nodes.lock(name, ttl=30).acquire()._grant
    eventually(lambda: nodes.keys() == [1] * 5, "somebody has not granted it")
    pipeline = engine._nodes.all[slow]._late.popleft()
    assert engine.extend(grant, 30)
    for other in others[:2]:
        nodes.clients[other].flushall()
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            engine.verify(grant)
        pipeline.node.lose(pipeline, None)
    with contextlib.suppress(BackendUnavailable):
        engine.release(grant)
    nodes.gone()


def test_a_shorter_ttl_counts_though_its_confirmation_is_lost(nodes: Nodes, name: str, engine: Any) -> None:
    """The nodes may have been told: from then on the lease must not claim to live longer than the keys do."""
    lease, stored = nodes.held(name), f"redlock:{{{nodes.key(name).text}}}"
    with ThreadPoolExecutor(1) as pool:

        def extend() -> Any:
            for proxy in nodes.proxies:
                proxy.swallow(1)
            return pool.submit(lease.extend, 3)

        extending = extend()

        def told() -> bool:
            nonlocal extending
            if sum(client.pttl(stored) <= 3000 for client in nodes.clients) >= 3:
                return True
            if extending.done():  # on a busy machine three were late, and left out
                extending = extend()
            return False

        eventually(told, "they are not told")

        def majority_for_a_rival() -> bool:
            return sum(bool(client.set(stored, "rival", nx=True, px=60_000)) for client in nodes.clients) >= 3

        with nodes.silent(*range(5)):  # no renewal comes through
            with pytest.raises(BackendUnavailable):
                extending.result(25)
            eventually(majority_for_a_rival, "the keys live on")
            assert lease.lost, "it is valid, and somebody else has it"
    for client in nodes.clients:
        client.delete(stored)
    with contextlib.suppress(LockLost):
        lease.release()


def test_r17_a_node_that_is_slow_to_connect_breaks_it_too(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other four are asked without it, and a lock that stayed there would keep its vote from the next holder."""
    for client in nodes.clients:
        client.set("redlock:{garbage}", b"x")
    engine, connect = nodes.engine, Node.open
    (info,) = [info for info in engine.inspect() if info.key == "garbage"]
    engine.close()

    def open_last(node: Node) -> None:
        if node.number == 5:
            eventually(lambda: nodes.keys(range(4)) == [0] * 4, "the others do not go ahead")
        connect(node)

    monkeypatch.setattr(Node, "open", open_last)
    monkeypatch.setattr(backend, "PATIENCE", 20.0)
    assert engine.break_lock(info)
    assert nodes.keys() == [0] * 5
