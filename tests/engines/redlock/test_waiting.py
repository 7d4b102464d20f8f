"""Redlock's waiters: they sleep until they are called, and look now and then in case nobody calls them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout
from django_distlock.backends.redis.connection import PENDING
from django_distlock.backends.redlock.acquire import RedlockAttempt
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.redlock.nodes import Nodes, five_nodes, key
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from django_distlock.keys import LockKey
    from django_distlock.records import Grant

__all__ = ["key"]
pytestmark = pytest.mark.alone
# A waiter looks that often at least, though nobody calls it; and so long may it take when it has been called. Seconds.
LOOK, CALLED = 2.0, 0.2
NODE_TIMEOUT = 0.5


@pytest.fixture
def nodes(request: pytest.FixtureRequest, settings: Any, nothing_left: None) -> Iterator[Nodes]:
    with five_nodes(settings, node_timeout=getattr(request, "param", NODE_TIMEOUT)) as nodes:
        yield nodes
        registry.close()


@pytest.fixture
def lead(key: LockKey) -> int:
    """The node at which waiters stand in line."""
    return key.digest[0] % 5


class Stranger:
    """As another process: a backend of its own, past the proxies, without renewals."""

    def __init__(self, nodes: Nodes, key: LockKey) -> None:
        urls = [f"redis://:{one['password']}@{one['host']}:{one['port']}/0" for one in nodes.servers]
        self.backend = RedlockBackend("five", {"nodes": urls})
        self.key = key

    def acquire(self, ttl: float = 30.0) -> Grant:
        """Hold it at all five nodes. Where connecting takes long, a majority is enough for a holder; and a waiter then
        leaves a lead that does not know the holder."""
        grants: list[Grant] = []

        def everywhere() -> bool:
            while grants:
                self.backend.release(grants.pop())
            claim = Claim(key=self.key, ttl=ttl, token=new_token(), answer_by=monotonic() + 5)
            grant = self.backend.try_acquire(claim)
            assert grant is not None
            grants.append(grant)
            return all(vote is not None and vote.reply not in (None, PENDING) for vote in grant.session.votes)

        eventually(everywhere, "it does not hold it at all nodes")
        return grants[0]


@pytest.fixture
def stranger(nodes: Nodes, key: LockKey) -> Iterator[Stranger]:
    stranger = Stranger(nodes, key)
    yield stranger
    stranger.backend.close()


@pytest.fixture(params=["sync", "async"])
def wait(request: pytest.FixtureRequest, nodes: Nodes, name: str) -> Iterator[Callable[..., Future[float]]]:
    """Begin to wait for the lock; when it was got, and it is given back at once."""

    def thread(timeout: float) -> float:
        with nodes.lock(name, timeout=timeout):
            return monotonic()

    async def task(timeout: float) -> float:
        async with nodes.lock(name, timeout=timeout):
            return monotonic()

    with ThreadPoolExecutor() as pool:
        if request.param == "sync":
            yield lambda timeout=20.0: pool.submit(thread, timeout)
        else:
            yield lambda timeout=20.0: pool.submit(lambda: asyncio.run(task(timeout)))


def listening(nodes: Nodes, lead: int, waiting: Future[Any], looks: int = 1) -> None:
    """Wait until somebody stands in line at ``lead`` who can be called there, and has looked so often."""
    node, seen = nodes.clients[lead], set[bytes]()

    def settled() -> bool:
        assert not waiting.done(), waiting.exception() or "it waits no more"
        told = [row for key in node.scan_iter("redlock:*:waiters") for row in node.hvals(key)]
        seen.update(row.split(b" ")[0] for row in told)
        return len(seen) >= looks and any(n for _, n in node.pubsub_numsub(*(row.split(b" ")[1] for row in told)))

    eventually(settled, "nobody listens")


def requests(nodes: Nodes) -> list[int]:
    """How often each node was asked for its vote: by a script where the line is, else by SET."""
    return [sum(both) for both in zip(nodes.calls("evalsha"), nodes.calls("set"), strict=True)]


@pytest.mark.tier2
def test_waiting_costs_the_nodes_next_to_nothing(nodes: Nodes, name: str, wait: Any, stranger: Stranger) -> None:
    """One that looks again and again sends 50 requests a second and more."""
    grant = stranger.acquire()
    waiting = wait()
    time.sleep(1)
    before = requests(nodes)
    time.sleep(2)
    asked = sum(after - was for after, was in zip(requests(nodes), before, strict=True))
    stranger.backend.release(grant)
    waiting.result(10)
    assert asked <= 20


def test_r5_a_caller_whose_time_is_over_does_not_begin_again(
    nodes: Nodes, name: str, wait: Any, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last answer counts. A crowd that came at once would else ask once more at once, and find no connection."""
    begun: list[None] = []

    class Counted(RedlockAttempt):
        def __init__(self, *args: Any) -> None:
            begun.append(None)
            super().__init__(*args)

    nodes.connect(name)  # which may take longer than it waits
    grant = stranger.acquire()
    monkeypatch.setattr("django_distlock.backends.redlock.backend.RedlockAttempt", Counted)
    monkeypatch.setattr("django_distlock.backends.redlock.waiter.LAST_LOOK", 0.2)  # the first look comes after 0.2 s
    with pytest.raises(LockTimeout):
        wait(0.35).result(10)
    stranger.backend.release(grant)
    assert len(begun) == 1


def test_who_is_called_has_it_at_once(nodes: Nodes, wait: Any, stranger: Stranger, lead: int) -> None:
    asked = []
    for _ in range(3):
        grant = stranger.acquire()
        waiting = wait()
        listening(nodes, lead, waiting)
        before = sum(requests(nodes))
        stranger.backend.release(grant)
        released = monotonic()
        within(waiting.result(10) - released, CALLED)
        eventually(lambda: nodes.keys() == [0] * 5, "keys are left")
        asked.append(sum(requests(nodes)) - before)
    # to take it and to give it back, on each node, and the stranger's release; more if it came before that everywhere
    assert min(asked) <= 16  # the script of the line calls SET, which is counted again


def test_who_has_waited_has_it_since_it_was_granted(nodes: Nodes, name: str, stranger: Stranger, lead: int) -> None:
    grant = stranger.acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(nodes.lock(name).acquire)
        listening(nodes, lead, waiting, looks=3)
        released = datetime.now(UTC)
        stranger.backend.release(grant)
        lease = waiting.result(10)
    (info,) = [info for info in stranger.backend.inspect() if info.name == name]
    lease.release()
    assert info.acquired_at is not None
    assert info.acquired_at >= released


def test_an_operator_who_breaks_it_calls_the_next(nodes: Nodes, wait: Any, stranger: Stranger, lead: int) -> None:
    stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting, looks=3)  # the next one is a while away
    (info,) = stranger.backend.inspect()
    assert stranger.backend.break_lock(info)
    broken = monotonic()
    within(waiting.result(10) - broken, CALLED)


def test_who_waits_is_listed_if_it_is_there(
    nodes: Nodes, wait: Any, stranger: Stranger, lead: int, key: LockKey
) -> None:
    """Two processes have died, of which one listened and the other looked again and again."""
    grant = stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting)
    line = f"redlock:{{{key.text}}}"
    for number, ear in enumerate(["distlock:nobody", ""], 1):
        nodes.clients[lead].zadd(f"{line}:queue", {f"dead{number}": number})
        nodes.clients[lead].hset(f"{line}:waiters", f"dead{number}", f"1 {ear} {{}}")
    (info,) = stranger.backend.inspect()
    assert info.waiters == 1
    assert [who.split(":")[:2] for who in info.waiting] == [[socket.gethostname(), str(os.getpid())]]
    stranger.backend.release(grant)
    released = monotonic()
    within(waiting.result(10) - released, CALLED, what="the one behind the dead")


@pytest.mark.tier2
def test_the_end_of_a_lease_calls_nobody_and_is_noticed(nodes: Nodes, wait: Any, stranger: Stranger) -> None:
    """I8: within the TTL and 0.1 s."""
    grant = stranger.acquire(ttl=1.5)
    within(wait().result(10) - grant.acquired_at, 1.6, least=1.5)


def test_a_call_that_is_lost(nodes: Nodes, wait: Any, stranger: Stranger, lead: int) -> None:
    """The node has forgotten who waits."""
    grant = stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting)
    for stored in nodes.clients[lead].scan_iter("redlock:*:*"):
        nodes.clients[lead].delete(stored)
    stranger.backend.release(grant)
    released = monotonic()
    within(waiting.result(10) - released, LOOK + CALLED)


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_are_cut_while_one_listens(
    nodes: Nodes, wait: Any, stranger: Stranger, lead: int, reset: bool
) -> None:
    """It stands in line again, and is called."""
    grant = stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting)
    channels = nodes.clients[lead].pubsub_channels("distlock:*")
    for proxy in nodes.proxies:
        proxy.cut(reset=reset)
    eventually(lambda: not {*channels} & {*nodes.clients[lead].pubsub_channels("distlock:*")}, "they were not cut")
    listening(nodes, lead, waiting)
    stranger.backend.release(grant)
    released = monotonic()
    within(waiting.result(10) - released, CALLED)


def test_the_node_that_keeps_the_line_falls_silent(nodes: Nodes, wait: Any, stranger: Stranger, lead: int) -> None:
    """It neither calls nor answers; the others are enough."""
    grant = stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting)
    nodes.proxies[lead].blackhole()
    stranger.backend.release(grant)
    released = monotonic()
    within(waiting.result(10) - released, LOOK + NODE_TIMEOUT + CALLED)
    nodes.proxies[lead].heal()
    eventually(lambda: nodes.keys() == [0] * 5, "keys are left")


def test_who_gives_up_is_not_called(nodes: Nodes, wait: Any, stranger: Stranger, lead: int, key: LockKey) -> None:
    """R7: the next one is, though it listens on the same connection as the one before."""
    grant = stranger.acquire()
    impatient = wait(timeout=2.0)
    listening(nodes, lead, impatient)
    assert impatient.exception(10) is not None
    queue = f"redlock:{{{key.text}}}:queue"
    # less than KEPT, after which a queue is forgotten
    eventually(lambda: not nodes.clients[lead].exists(queue), "it still stands in line", patience=10)
    waiting = wait()
    listening(nodes, lead, waiting)
    stranger.backend.release(grant)
    released = monotonic()
    within(waiting.result(10) - released, CALLED)


def test_r22a_a_call_is_no_grant(nodes: Nodes, wait: Any, stranger: Stranger, lead: int, key: LockKey) -> None:
    """Redis carries messages on, so any node may say it, at any time: a waiter that is called asks all nodes."""
    grant = stranger.acquire()
    waiting = wait()
    listening(nodes, lead, waiting)
    node, asked = nodes.clients[lead], requests(nodes)
    ((member, row),) = node.hgetall(f"redlock:{{{key.text}}}:waiters").items()
    for _ in range(3):
        assert node.publish(row.split(b" ")[1], member) == 1
    eventually(lambda: all(a > b for a, b in zip(requests(nodes), asked, strict=True)), "it does not ask")
    assert not waiting.done()
    assert nodes.keys() == [1] * 5
    stranger.backend.release(grant)
    waiting.result(10)


def test_a_node_that_lets_nobody_listen(settings: Any, nodes: Nodes, name: str, stranger: Stranger) -> None:
    """A user with the keys of the locks and no channel: waiters look again and again, and releases go on."""
    user, password = "nochannels", "secret-of-a-test"
    for client in nodes.clients:
        client.acl_setuser(user, enabled=True, passwords=[f"+{password}"], keys=["redlock:*"], commands=["+@all"])
    urls = [f"redis://{user}:{password}@{one['host']}:{one['port']}/0" for one in nodes.servers]
    quiet = {"BACKEND": settings.DISTLOCK["five"]["BACKEND"], "OPTIONS": {"nodes": urls}}
    settings.DISTLOCK = {**settings.DISTLOCK, "five": quiet}
    try:
        grant = stranger.acquire()
        timer = threading.Timer(0.6, lambda: stranger.backend.release(grant))
        timer.start()
        with nodes.lock(name, timeout=10) as lease:
            lease.ensure_held()
        timer.join()
        registry.close()
        eventually(lambda: nodes.keys() == [0] * 5, "keys are left")
    finally:
        for client in nodes.clients:
            client.acl_deluser(user)


@pytest.mark.parametrize("nodes", [3.0], indirect=True)  # seconds in which it is seen in the line, and cancelled
def test_r7_who_is_cancelled_before_its_first_answer_leaves_the_line(
    nodes: Nodes, name: str, lead: int, stranger: Stranger
) -> None:
    """It stands there though it never heard so. Whoever else is called in its place costs all others half a second."""
    line, node = nodes.lock(name, timeout=5), nodes.clients[lead]

    async def cancelled() -> None:
        for proxy in nodes.proxies:
            proxy.swallow(1)
        task = asyncio.create_task(line.aacquire())
        while not list(node.scan_iter("redlock:*:queue")):
            assert not task.done(), task.result()
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    nodes.connect(name)
    grant = stranger.acquire()
    with pytest.raises(LockTimeout):
        line.acquire(timeout=0.5)  # so it joins the line at once, and listens on a connection that is there
    nodes.quiet()
    asyncio.run(cancelled())
    eventually(lambda: not list(node.scan_iter("redlock:*:queue")), "it stands in line for ever", patience=10)
    stranger.backend.release(grant)
