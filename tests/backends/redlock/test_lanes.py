"""What goes on in a lane beside its questions: who connects, and whose descriptor is closed when."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis

from django_distlock.backends.redis.connection import Link
from django_distlock.backends.redis.target import Target
from django_distlock.backends.redlock import acquire
from django_distlock.backends.redlock.acquire import Ballot
from django_distlock.backends.redlock.lanes import Lane
from django_distlock.backends.redlock.pool import LANES, Lanes
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.keys import derive_key
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.backends.redlock.nodes import five_nodes
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
    """Lanes that are idle are closed, and others come in their place, while nobody can tell the address of a node."""
    monkeypatch.setattr("django_distlock.backends.redlock.pool.CONNECT_TIMEOUT", 0.05, raising=False)
    monkeypatch.setattr("django_distlock.backends.redlock.nodes.HELD_UP", 0.005)
    lanes = Lanes([Target(url="redis://hung.example"), Target(url="redis://too.example")], "test-connect", bool)
    for _ in range(3):
        for number in range(LANES):
            lane = lanes.lane(number)
            for line in lane.lines:
                lane.connect(line)
        for _ in range(2 * LANES):
            time.sleep(0.01)
            lanes.nodes[0].hurry()
        lanes.tick(monotonic() + 3600)
        assert not lanes._lanes
    threads = list(lanes._connectors._since)
    assert len(threads) == 2 * LANES
    assert [len(node._connecting) for node in lanes.nodes] == [LANES, LANES]
    began = monotonic()
    lanes.close()
    within(monotonic() - began, 0.3)
    resolver.set()
    for thread in threads:
        thread.join(5)


def _link(sock: socket.socket) -> Link:
    driver = redis.Connection(protocol=3)
    driver._sock = sock
    driver._parser.on_connect(driver)
    return Link(driver)


def test_a_descriptor_that_an_event_loop_watches_is_not_closed_under_it() -> None:
    """A connection that was silent is replaced by a connecting thread. The number of its descriptor would soon be
    somebody else's, and the loop would take that for ours."""
    lane = Lane([SimpleNamespace(error=None)])  # type: ignore[list-item]
    ends = [socket.socketpair() for _ in range(2)]
    (line,) = lane.lines
    first = ends[0][0].fileno()
    lane._attach(line, _link(ends[0][0]))
    open_still: list[bool] = []

    def replace() -> None:
        with lane.guard:  # else the loop may have heard of it, and be through, before the look
            line.attach(_link(ends[1][0]))
            open_still.append(_open(first))

    async def main() -> None:
        listening = asyncio.create_task(lane.alisten(monotonic() + 5))
        await asyncio.sleep(0)
        await asyncio.to_thread(replace)
        await listening  # told at once: the connection has ended

    asyncio.run(main())
    assert open_still == [True]
    assert not _open(first)
    lane.close()
    for _, other in ends:
        other.close()


@pytest.fixture
def lanes() -> Lanes:
    """Of a node that nobody has asked for anything."""
    return Lanes([Target(url="redis://127.0.0.1:1")], "test-connect", bool)


@pytest.mark.parametrize("taken", ["by the keepalive thread", "to ask"])
def test_who_has_the_turn_when_a_lane_is_closed_gives_its_descriptors_back(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """Whoever closes it may not do so under the one that has the turn, and that one is not always asking."""
    lane = lanes.lane(0)
    if taken == "to ask":
        take = lane.turn.try_acquire

        def took() -> bool:
            lane.turn.try_acquire = take
            took = take()
            lanes.close()
            return took

        lane.turn.try_acquire = took
        other = run(lanes.enter(None, 1))
        assert other is not lane
        other.leave()
        lanes.close()
    else:
        monkeypatch.setattr(lane, "tend", lambda now: lanes.close())
        lanes.tick(monotonic())
    assert lane.closed
    assert [each.fileno() for each in (lane._ear, lane._mouth)] == [-1, -1]


def test_a_lane_that_is_closed_while_another_takes_its_place_leaves_it_there(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would know of the new one, to close it."""
    lane = lanes.lane(0)
    new: list[Lane] = []

    def idle(now: float) -> bool:
        lanes.close()
        new.append(lanes.lane(0))
        return True

    monkeypatch.setattr(lane, "idle", idle)
    lanes.tick(monotonic())
    assert new != [lane]
    assert lanes.lane(0) is new[0]
    assert not new[0].closed
    lanes.close()


def test_a_lane_that_is_made_while_all_are_closed_is_closed_too(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Lane] = []

    def make(nodes: Any) -> Lane:
        lanes.close()
        made.append(Lane(nodes))
        return made[-1]

    monkeypatch.setattr("django_distlock.backends.redlock.pool.Lane", make)
    assert lanes.lane(0).closed
    assert [each.fileno() for each in (made[0]._ear, made[0]._mouth)] == [-1, -1]
    monkeypatch.undo()
    assert not lanes.lane(0).closed
    lanes.close()


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_r4_a_waiter_does_not_leave_its_node_for_a_moments_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node grants it and the others do not, twice: they may only be later to hear of a release."""
    now = 100.0
    monkeypatch.setattr(acquire, "monotonic", lambda: now)
    claim = Claim(key=derive_key("", "pure", "x"), ttl=30.0, token="token")
    ballot = Ballot(claim, b"{}", SimpleNamespace(lines=[None] * 5))  # type: ignore[arg-type]
    for _ in range(3):
        ballot.refused(split=True)
        now += 0.01
    assert ballot.strange_leads == 0
    now += acquire.STRANGE
    ballot.refused(split=True)
    assert ballot.strange_leads == 1
    ballot.refused(split=True)
    assert ballot.strange_leads == 1, "and so on at the next node"


def test_two_threads_connect_to_nodes_that_answer(settings: Any, nothing_left: None, name: str) -> None:
    """However many tasks ask, and however many nodes there are."""
    most = 0
    starts = threading.Thread.start

    def start(self: threading.Thread) -> None:
        nonlocal most
        starts(self)
        most = max(most, sum(thread.name.endswith("-connect") for thread in threading.enumerate()))

    async def one(lock: Any) -> None:
        async with lock:
            await asyncio.sleep(0)

    async def main(lock: Any) -> None:
        await asyncio.gather(*(one(lock) for _ in range(50)))

    with five_nodes(settings, node_timeout=1) as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_distlock.backends.redlock.nodes.HELD_UP", 5.0, raising=False)
        patch.setattr(threading.Thread, "start", start)
        asyncio.run(main(nodes.lock(name)))
        registry.close()
    assert 0 < most <= 2
