"""Connections to the nodes: which threads open them, and what happens to them when they are closed."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis.connection import pack
from django_distlock.backends.redlock import waiter
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.backends.redlock.nodes import PLACES, NodeRequest
from django_distlock.backends.redlock.rounds import Round
from django_distlock.backends.redlock.waiter import Pace
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.sockets import readable
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redlock.nodes import five_nodes
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """One that gives no answer before this event."""
    answer = threading.Event()

    def hang(*args: Any, **kwargs: Any) -> Any:
        answer.wait(20)
        raise socket.gaierror("there was no answer")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield answer
    answer.set()


def test_r23_connecting_threads_do_not_pile_up(resolver: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers come and go while no name server tells the addresses of the nodes."""
    monkeypatch.setattr("django_distlock.backends.redlock.nodes.CONNECT_TIMEOUT", 0.05)
    monkeypatch.setattr("django_distlock.backends.redlock.nodes.HELD_UP", 0.05)
    monkeypatch.setattr("django_distlock.backends.redlock.nodes.RETRY", 0.0)
    before = set(threading.enumerate())
    backend = RedlockBackend("five", {"nodes": ["redis://hung.example", "redis://too.example"]})
    nodes = backend._nodes
    most = 0
    for _ in range(120):
        run(nodes.connected(nodes.all[0], monotonic() + 0.01))
        nodes.connect(nodes.all)
        most = max(most, len(set(threading.enumerate()) - before))
    assert most <= 2, "one is left waiting for each node"
    assert all(node.trouble for node in nodes.all)
    began = monotonic()
    backend.close()
    within(monotonic() - began, 0.3)
    resolver.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)


def test_who_was_late_itself_does_not_take_a_node_for_silent(settings: Any, nothing_left: None, name: str) -> None:
    """A process that was stopped, or got no processor, for longer than a node may take finds the reply that came."""
    with five_nodes(settings) as five:
        five.connect(name)
        nodes: Any = registry.entry(five.using).backend
        node = nodes._nodes.all[0]
        pipeline = run(nodes._nodes.connected(node, monotonic() + 5))
        link = pipeline.link
        pipeline.send(NodeRequest(None, packed=pack("PING")), monotonic() + 0.05)
        time.sleep(0.06)
        assert readable(link.fd, 10)
        node.put(pipeline)
        assert not node.trouble
        assert node.take(clean=True).link is link


def votes_are_there(asked: Round) -> None:
    """Of a majority, and not heard yet."""
    eventually(lambda: sum(readable(fd, 0) for fd in asked._by_fd) >= 3, "no majority has answered")


@pytest.mark.parametrize("face", ["sync", "async"])
def test_r5_who_was_late_itself_has_the_lock_that_was_granted_in_time(
    settings: Any, nothing_left: None, name: str, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    """The caller got no processor from its requests to its deadline. The votes were there, and it gave up."""
    late: list[float] = []
    listen, alisten = Round._listen, Round._alisten

    def listen_late(self: Round, until: float) -> None:
        if late:
            return listen(self, until)
        late.append(until)
        time.sleep(until - monotonic() + 0.05)
        return votes_are_there(self)

    async def alisten_late(self: Round, until: float) -> None:
        if late:
            return await alisten(self, until)
        late.append(until)
        await asyncio.sleep(until - monotonic() + 0.05)
        return await asyncio.to_thread(votes_are_there, self)

    async def in_a_task() -> None:
        lease = await lock.aacquire(timeout=0.1)
        assert lease.held
        await lease.arelease()

    with five_nodes(settings, node_timeout=2) as five:
        five.connect(name)
        monkeypatch.setattr(Round, "_listen", listen_late)
        monkeypatch.setattr(Round, "_alisten", alisten_late)
        lock = advisory_lock(name, using=five.using)
        if face == "async":
            asyncio.run(in_a_task())
        else:
            lease = lock.acquire(timeout=0.1)
            assert lease.held
            lease.release()
    assert late


def test_a_descriptor_that_an_event_loop_watches_is_not_closed_under_it(
    settings: Any, nothing_left: None, name: str
) -> None:
    """Its number would soon belong to another connection, which the loop would take for ours."""

    async def main(lock: Any, nodes: Any) -> None:
        backend: Any = registry.entry("five").backend
        asking = asyncio.create_task(lock.aacquire(timeout=0))
        await asyncio.sleep(0.02)
        fds = [link.fd for node in backend._nodes.all for link in node.pool._connections]
        assert len(fds) == 5
        closing = threading.Thread(target=backend.close)
        closing.start()
        closing.join()  # the loop stands still, and so cannot be the one that closes them
        opened.extend(map(_open, fds))
        with pytest.raises(BackendUnavailable):
            await asking

    opened: list[bool] = []
    with five_nodes(settings, node_timeout=0.5) as nodes:
        nodes.connect(name)
        for proxy in nodes.proxies:
            proxy.blackhole()
        asyncio.run(main(nodes.lock(name), nodes))
        registry.close()
    assert opened == [True] * 5


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_what_was_late_is_closed_with_the_rest(settings: Any, nothing_left: None, name: str) -> None:
    """A connection is at hand again when the reply for which no caller waits has come."""
    with five_nodes(settings, node_timeout=0.5) as nodes:
        nodes.connect(name)
        all_nodes = registry.entry("five").backend._nodes.all  # type: ignore[attr-defined]
        nodes.proxies[0].blackhole()
        nodes.lock(name).acquire().release()
        assert len(all_nodes[0]._late) == 1
        nodes.proxies[0].heal()

        def heard() -> bool:
            all_nodes[0].tick(monotonic())
            return not all_nodes[0]._late

        eventually(heard, "the replies are not taken")
        assert all_nodes[0].pool.size == 1
        nodes.proxies[0].blackhole()
        nodes.lock(name).acquire().release()
        fd = all_nodes[0]._late[0].link.fd
        registry.close()
        assert not all_nodes[0]._late
        assert not _open(fd)


def test_r4_a_waiter_does_not_leave_its_node_for_a_moments_difference() -> None:
    """The node grants it and the others do not, twice: they may only be later to hear of a release."""
    pace, now = Pace(), 100.0
    for _ in range(3):
        pace.split(now)
        now += 0.01
    assert pace.shift == 0
    now += waiter.STRANGE
    pace.split(now)
    assert pace.shift == 1
    pace.split(now)
    assert pace.shift == 1, "and so on at the next node"


def test_when_a_waiter_asks_without_being_called() -> None:
    """Less and less often; and when the lease of the holder has ended, one after the other."""
    pace, now = Pace(), 100.0
    pace.queued(-1 - 2 - 30_000 * PLACES, now)
    assert pace.ahead == 2
    looks = [pace.look_at(now) - now for _ in range(6)]
    assert looks[0] < looks[1] < looks[2]
    assert waiter.FIRST_LOOK * 0.75 <= looks[0] <= waiter.FIRST_LOOK
    assert looks[-1] <= waiter.LONGEST_LOOK
    pace.queued(-1 - 2 - 100 * PLACES, now)
    assert pace.look_at(now) - now == pytest.approx(0.1 + waiter.EXPIRED + 2 * waiter.LATER)
    pace.called()
    pace.queued(-1 - 0 - 30_000 * PLACES, now)
    assert pace.look_at(now) - now <= waiter.FIRST_LOOK


def test_two_threads_connect_to_nodes_that_answer(settings: Any, nothing_left: None, name: str) -> None:
    """However many tasks ask, and however many nodes there are."""
    made = most = 0
    starts = threading.Thread.start

    def start(self: threading.Thread) -> None:
        nonlocal made, most
        starts(self)
        made += self.name.endswith(("-connect", "-open"))  # and perhaps at its end already
        most = max(most, sum(thread.name.endswith(("-connect", "-open")) for thread in threading.enumerate()))

    async def one(lock: Any) -> None:
        async with lock:
            await asyncio.sleep(0)

    async def main(lock: Any) -> None:
        await asyncio.gather(*(one(lock) for _ in range(50)))

    with five_nodes(settings, node_timeout=1) as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_distlock.backends.redlock.nodes.HELD_UP", 5.0)
        patch.setattr(threading.Thread, "start", start)
        asyncio.run(main(nodes.lock(name)))
        registry.close()
    assert made
    assert most <= 2


def test_a_node_that_answers_late_is_in_no_trouble_afterwards(settings: Any, nothing_left: None, name: str) -> None:
    """A caller looks at the node in the moment in which the thread that connects has done so.

    A caller that stored what it saw then, stored it for good: the node kept no queue any more.
    """
    with five_nodes(settings, node_timeout=0.5) as nodes:
        nodes.connect(name)
        all_nodes = registry.entry("five").backend._nodes  # type: ignore[attr-defined]
        node = all_nodes.all[0]

        class EndsWhenSeen(float):
            def __bool__(self) -> bool:
                node.connecting = 0.0
                return True

        node.connecting = EndsWhenSeen(monotonic())
        all_nodes.connect([node])
        assert not node.trouble
        registry.close()


def test_nodes_that_are_connected_before_the_caller_looks(
    settings: Any, nothing_left: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that connects may be through before the caller that has started it goes on."""
    start = threading.Thread.start

    def start_and_end(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "distlock-five-connect":
            thread.join(5)

    monkeypatch.setattr(threading.Thread, "start", start_and_end)
    with five_nodes(settings, node_timeout=0.5) as nodes:
        nodes.lock(name).acquire(timeout=0).release()
        registry.close()
