"""Redlock: which votes count when nodes are down, silent, empty or lose replies, and what is taken back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from django_distlock import BackendUnavailable, LockLost, LockTimeout
from django_distlock.backends.redis.connection import ConnectionFailed
from django_distlock.backends.redlock import round as rounds
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.backends.redlock.node import Node
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.sockets import readable
from django_distlock.records import drift
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.engines.redlock.conftest import Nodes


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


def test_r7_what_no_script_of_ours_returns_is_no_vote(nodes: Nodes, name: str) -> None:
    """Its server may have voted all the same, and is told that the vote is of no use."""
    nodes.connect(name)
    for proxy in nodes.proxies[:3]:
        proxy.rewrite(b"*2\r\n:", b"+OK\r\n")
    with pytest.raises(BackendUnavailable, match=r"^3 of 5 Redis nodes failed: 1, 2, 3"):
        nodes.lock(name, ttl=30).acquire(timeout=2)
    nodes.gone()


@pytest.fixture
def slow_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the others are waited for where a majority is at hand."""
    connect = Node._connect

    def slow(node: Node, timeout: float) -> Any:
        threading.Event().wait(0.3)
        return connect(node, timeout)

    monkeypatch.setattr(Node, "_connect", slow)


@pytest.mark.tier2
@pytest.mark.parametrize("timeout", [0, 10])
def test_r5_a_crowd_in_a_cold_process_is_served(nodes: Nodes, name: str, timeout: float, slow_handshakes: None) -> None:
    """Each takes its connections at once, and those behind it get them when it has done."""
    locks = [nodes.lock(f"{name}{number}", ttl=30) for number in range(40)]
    with ThreadPoolExecutor(len(locks)) as pool:
        for lease in list(pool.map(lambda lock: lock.try_acquire(timeout), locks)):
            lease.release()
    assert all(len(node._all) < 10 for node in nodes.engine.nodes)


@pytest.mark.tier2
def test_r6_a_crowd_that_cannot_connect_is_told_at_once(nodes: Nodes, name: str) -> None:
    """Not one after the other, each after its second."""
    began = monotonic()
    with nodes.silent(0, 1, 2), ThreadPoolExecutor(12) as pool:
        told = [pool.submit(nodes.lock(f"{name}{number}").try_acquire, 20) for number in range(12)]
        assert {type(each.exception(30)) for each in told} == {BackendUnavailable}
        within(monotonic() - began, 4.0)


@pytest.mark.tier2
def test_r5_a_release_waits_for_connections_to_those_that_have_voted(
    nodes: Nodes, name: str, slow_handshakes: None
) -> None:
    """Two others would make a majority, but know nothing of the lock."""
    nodes.connect(f"{name} first")
    with nodes.down(3, 4):
        lease = nodes.lock(name, ttl=30).acquire(timeout=5)
    nodes.connect(f"{name} second")
    for node in nodes.engine.nodes[:2]:
        node._close_idle()
    lease.ensure_held()
    lease.release()
    nodes.gone()


def test_r5_connections_that_were_cut_a_moment_ago_are_opened_again(nodes: Nodes, name: str) -> None:
    """By those who are to release the lock, which was called lost."""
    lease = nodes.held(name)
    voted = [number for number in range(5) if number not in lease._grant.session.late]
    for number in voted[:3]:
        nodes.proxies[number].cut()
    lease.release()
    nodes.gone()


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
    """Its process paused: the time of the nodes is over, and the caller believes that it has some left."""
    with nodes.silent(*range(5)), pytest.raises(BackendUnavailable, match="5 of 5 Redis nodes did not answer in time"):
        nodes.engine.try_acquire(nodes.claim(name, answer_in=0.1), 0.15)


def test_r5_who_was_late_itself_has_what_was_granted_in_time(patient_nodes: Nodes, name: str, monkeypatch: Any) -> None:
    """The caller got no processor from its requests to its deadline. The votes were there, and it gave up."""
    listen, late = rounds.any_ready, threading.Event()

    async def sleep_over(fds: Any, until: float) -> list[int]:
        if not late.is_set():
            late.set()
            eventually(lambda: monotonic() > until, "the clock stands still")
            eventually(lambda: sum(readable(fd, 0) for fd in fds) >= 3, "no majority has answered")
        return await listen(fds, until)

    patient_nodes.connect(name)
    monkeypatch.setattr(rounds, "any_ready", sleep_over)
    patient_nodes.lock(name).acquire(timeout=0.1).release()
    assert late.is_set()
    patient_nodes.gone()


def test_r7_a_grant_whose_reply_is_lost_is_taken_back(patient_nodes: Nodes, name: str) -> None:
    """On a majority, on other connections: no network goes on with a stream after a gap."""
    patient_nodes.connect(name)
    for proxy in patient_nodes.proxies[:3]:
        proxy.swallow(1)
    with pytest.raises((BackendUnavailable, LockTimeout)):
        patient_nodes.lock(name, ttl=30).acquire(timeout=1)
    patient_nodes.gone()


def test_a_node_that_comes_back_empty(nodes: Nodes, name: str, engine: Any) -> None:
    """It is one vote less, until the lock is extended. Three of them are a loss, and nothing is given again."""
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


def test_r7_a_release_reaches_a_node_that_comes_back(nodes: Nodes, name: str, engine: Any) -> None:
    lease = nodes.held(name)
    with nodes.down(0, reset=True):
        lease.release()
        eventually(lambda: nodes.keys() == [1, 0, 0, 0, 0], "it is not released")
    nodes.gone()
    assert not engine.nodes[0].down


def test_r7_a_release_on_new_connections_reaches_all_nodes(nodes: Nodes, name: str, engine: Any) -> None:
    """A majority is enough for the caller; the others are still being connected to."""
    for _ in range(10):
        lease = nodes.held(name)
        for node in engine.nodes:
            node._close_idle()
        lease.release()
        nodes.gone()


@pytest.mark.parametrize("refused", [False, True], ids=["new", "refused before"])
def test_r7_a_release_reaches_a_node_that_does_not_know_its_script(nodes: Nodes, name: str, refused: bool) -> None:
    """Nobody reads what the others say of the script; and a node that has refused a script has not kept it."""
    for client, node in zip(nodes.clients, nodes.engine.nodes, strict=True):
        client.script_flush()
        node.open()
        eventually(lambda node=node: node._idle, "it is not connected")
    if refused:
        nodes.clients[0].execute_command("ACL", "SETUSER", "default", "-eval")
        try:
            nodes.lock(name).acquire(timeout=5).release()
            nodes.quiet()
        finally:
            nodes.clients[0].execute_command("ACL", "SETUSER", "default", "+eval")
    lease = nodes.held(name)
    request = nodes.proxies[0].hold("request")
    lease.release()
    request.wait()
    request.pass_on()
    nodes.gone()


def test_r7_a_renewal_gives_no_vote_after_the_release(nodes: Nodes, name: str, engine: Any) -> None:
    """A node has forgotten the lock, and a renewal asks it for its vote again, while the lock is released."""
    for _ in range(20):
        grant = engine.try_acquire(nodes.claim(name), 10)
        nodes.quiet()
        nodes.clients[0].flushall()
        with ThreadPoolExecutor(2) as pool:
            extending = pool.submit(engine.extend, grant, 60)
            pool.submit(engine.release, grant).exception()
            extending.exception()
        nodes.gone()


@pytest.mark.parametrize("broken", [None, "reset", "closed"])
def test_r7_the_votes_of_a_refused_attempt_are_taken_back(patient_nodes: Nodes, name: str, broken: str | None) -> None:
    """Even if the connection of one of them breaks when the others have decided: on another one it can be told."""
    nodes = patient_nodes
    nodes.connect(name)
    last = nodes.proxies[2].hold("request")
    with nodes.taken(name, 0, 1, 2), ThreadPoolExecutor(1) as pool:
        asking = pool.submit(nodes.engine.try_acquire, nodes.claim(name))
        last.wait()
        eventually(lambda: nodes.keys([3, 4]) == [1, 1], "they have not voted")
        eventually(lambda: not any(each.owed for each in nodes.engine.nodes[3]._all), "the vote is not heard")
        if broken:
            nodes.proxies[3].cut(reset=broken == "reset")
        last.pass_on()
        assert asking.result(20) is None
        eventually(lambda: nodes.keys([3, 4]) == [0, 0], "votes are left")


def test_r7_what_takes_back_a_vote_is_lost_with_its_connection(patient_nodes: Nodes, name: str) -> None:
    """It was written, and has not arrived."""
    nodes = patient_nodes
    nodes.connect(name)
    withdrawal = nodes.proxies[3].hold("request", 2)
    with nodes.taken(name, 0, 1, 2):
        assert nodes.engine.try_acquire(nodes.claim(name)) is None
        withdrawal.wait()
        assert nodes.keys([3]) == [1]
        nodes.proxies[3].cut()
        eventually(lambda: nodes.keys([3]) == [0], "the vote is left")


def test_r1_what_takes_back_a_vote_late_meets_no_later_one(
    nodes: Nodes, name: str, lead: int, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A withdrawal hangs in the network while its waiter asks again: a vote that it would end is none."""
    monkeypatch.setattr(Node, "take_back", lambda *_: None)  # it would arrive on another connection
    slow, free, *taken = ((lead + step) % 5 for step in (1, 2, 3, 4, 0))
    proxy = nodes.proxies[slow]
    with nodes.taken(name, *taken), ThreadPoolExecutor(1) as pool:
        proxy.detain(2)
        asked = nodes.calls("evalsha")[free]
        waiting = pool.submit(engine.try_acquire, nodes.claim(name), 25)
        eventually(lambda: nodes.keys([slow]) == [1], "it has not voted")
        # once it listens it asks again at once, on the connection of the withdrawal: too few votes were unavailable
        eventually(lambda: nodes.calls("evalsha")[free] >= asked + 3, "it does not wait")
        nodes.clients[taken[0]].delete(nodes.stored(name))
        asked = nodes.calls("evalsha")[free]
        eventually(lambda: nodes.calls("evalsha")[free] >= asked + 4, "it does not ask again")
        assert not waiting.done()
        proxy.deliver()
        assert engine.release(waiting.result(25))
    nodes.gone()


def test_r7_a_release_comes_behind_a_vote_that_is_under_way(nodes: Nodes, name: str, lead: int, engine: Any) -> None:
    """The request reaches the node when the lock has been released; on another connection the release were faster."""
    slow = (lead + 1) % 5
    request = nodes.proxies[slow].hold("request")
    lease = nodes.lock(name, ttl=30).acquire()
    request.wait()
    eventually(lambda: sum(nodes.keys()) == 4, "the others have not granted it")
    engine.nodes[slow].open()
    eventually(lambda: len(engine.nodes[slow]._idle) > 1, "there is no other connection")
    lease.release()
    request.pass_on()
    nodes.quiet()
    nodes.gone()


def test_a_shorter_ttl_counts_though_its_confirmation_is_lost(nodes: Nodes, name: str, engine: Any) -> None:
    """The nodes may have been told: from then on the lease must not claim to live longer than the keys do."""
    lease, stored = nodes.held(name), nodes.stored(name)
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
            return sum(not client.exists(stored) for client in nodes.clients) >= 3

        with nodes.silent(*range(5)):  # no renewal comes through
            with pytest.raises(BackendUnavailable):
                extending.result(25)
            eventually(majority_for_a_rival, "the keys live on")
            assert lease.lost, "it is valid, and somebody else may have it"
    with contextlib.suppress(LockLost):
        lease.release()


def test_r7_an_interrupted_attempt_to_connect_does_not_end_all_attempts(
    monkeypatch: Any,
) -> None:
    target: Any = mock.Mock()
    target.connect.side_effect = OSError
    node = Node(target, "node", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            node.open()
    attempt = node.open()
    assert run(attempt.wait(10))
    assert isinstance(attempt.exception(), ConnectionFailed)


def test_r4_more_threads_than_connections_share_them(nodes: Nodes, name: str, unhurried: None) -> None:
    """Each caller needs one to several nodes at once, and may not keep one while another caller keeps the next."""
    engine = RedlockBackend("many", {"nodes": nodes.direct_urls, "node_timeout": 20.0})

    def work(number: int) -> None:
        for time in range(3):
            grant = engine.try_acquire(nodes.claim(f"{name} {number} {time}"), 20)
            with contextlib.suppress(BackendUnavailable):  # a node to which there was no connection yet
                engine.release(grant)

    with ThreadPoolExecutor(150) as pool:
        list(pool.map(work, range(150)))
    engine.close()
