"""Whoever has got it, has given up or was interrupted stands in line at no node any more.

A place in line of nobody is called like any other, and each costs those behind it GRACE, half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockNotAcquired, LockTimeout
from django_distlock.backends.cleanup import UNDO_WINDOW
from django_distlock.backends.redlock import acquire, waiter
from django_distlock.backends.redlock.acquire import RedlockAttempt
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.tokens import new_token
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.redlock.line import LATE, SOON, Line
from tests.engines.redlock.nodes import Nodes, five_nodes, key
from tests.faults.test_interrupted import tick
from tests.support.interrupts import interrupted_everywhere
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey

__all__ = ["key"]
pytestmark = [pytest.mark.alone, pytest.mark.tier2]
NODE_TIMEOUT = 0.1


@pytest.fixture
def nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    with five_nodes(settings, NODE_TIMEOUT) as nodes:
        yield nodes
        registry.close()


@pytest.fixture(params=["sync", "async"])
def line(request: pytest.FixtureRequest, nodes: Nodes, name: str, key: LockKey) -> Iterator[Line]:
    line = Line(nodes, name, key, request.param)
    line.connect()
    yield line
    line.close()


def test_granted_at_once(line: Line) -> None:
    line.hold(5)
    line.nobody()


def test_granted_after_a_wait(line: Line) -> None:
    line.taken()
    waiting = line.start(10)
    eventually(line.stands, "it does not stand in line")
    line.free()
    waiting.result(10)
    line.nobody()


def test_timed_out_while_it_waits(line: Line) -> None:
    line.taken()
    with pytest.raises(LockTimeout):
        line.hold(0.5)
    line.nobody()


def test_refused_to_one_that_does_not_wait(line: Line) -> None:
    line.taken()
    with pytest.raises(LockNotAcquired):
        line.hold(0)
    assert not line.stands()


@pytest.mark.parametrize("seconds", [0.0, 0.6], ids=["given back at once", "held for long"])
def test_granted_by_the_others_and_the_line_hears_of_it_late(line: Line, seconds: float) -> None:
    """After the release, on a connection that has been given up since or not."""
    line.taken(line.lead)
    line.keeper.detain(1)
    line.hold(5, seconds)
    line.deliver()
    line.nobody(LATE)


@pytest.mark.parametrize("lost", [False, True], ids=["connected", "connection lost"])
@pytest.mark.parametrize("end", ["timed out", "cancelled"])
def test_given_up_before_the_line_hears_of_it(line: Line, end: str, lost: bool) -> None:
    """If the connection is lost, the first request arrives after the farewell, which goes another way."""
    line.taken()
    line.keeper.detain(1)
    asked = line.keeper.requests
    waiting = line.start(0.8 if end == "timed out" else 10)
    eventually(lambda: line.keeper.requests > asked, "it does not ask")
    if lost:
        line.keeper.drop_clients()
        eventually(line.stands, "it does not ask again")
    if end == "cancelled":
        line.cancel()
    with pytest.raises((LockTimeout, BackendUnavailable, asyncio.CancelledError, KeyboardInterrupt)):
        waiting.result(10)
    if lost:
        line.nobody()
        line.taken()
    line.deliver()
    line.nobody(LATE)


def test_timed_out_before_any_answer(line: Line) -> None:
    line.taken()
    for proxy in line.nodes.proxies:
        proxy.detain(1)
    with pytest.raises((LockTimeout, BackendUnavailable)):
        line.hold(0.3)
    line.deliver()
    line.nobody(LATE)


def test_the_line_cannot_be_reached_any_more_when_it_has_been_joined(line: Line) -> None:
    """It is back when the lock has been given back."""
    line.taken()
    waiting = line.start(5, 0.1)
    eventually(line.stands, "it does not stand in line")
    port = line.keeper.target
    line.keeper.target = ("127.0.0.1", 1)
    line.keeper.cut()
    for index in line.others:
        line.nodes.clients[index].delete(line.stored)
    waiting.result(10)
    assert line.stands()
    line.keeper.target = port
    line.nobody(LATE)


@pytest.mark.parametrize("end", ["stolen", "expired"])
def test_the_lock_is_lost(line: Line, end: str) -> None:
    """The node that keeps the line had answered after the others, and "no"."""
    line.taken()
    lost = line.start(5, 1, ttl=0.6, max_hold=0.5 if end == "expired" else None)
    eventually(line.stands, "it does not stand in line")
    line.keeper.delay(0.02)
    for index in line.others:
        line.nodes.clients[index].delete(line.stored)
    eventually(lambda: sum(line.nodes.keys(line.others)) == 4, "it has not got it")
    line.keeper.delay(0)
    for index in line.others if end == "stolen" else ():
        line.nodes.clients[index].delete(line.stored)
    assert lost.result(5).lost
    line.nobody()


def test_a_grant_after_its_own_validity(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given back, and asked for again."""
    backend: Any = registry.entry("five").backend
    line.taken(line.lead)
    line.keeper.delay(0.02)
    ends: list[float] = []
    make = RedlockAttempt._grant

    def late(self: RedlockAttempt, *args: Any) -> Any:
        grant = make(self, *args)
        ends.append(grant.acquired_at)
        return grant._replace(valid_until=grant.acquired_at) if len(ends) == 1 else grant

    monkeypatch.setattr(RedlockAttempt, "_grant", late)
    line.hold(5)
    assert len(ends) == 2
    line.keeper.delay(0)
    line.nobody()
    assert not backend._claims


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("how", ["silent", "unreachable"])
def test_nodes_that_are_away_for_a_while(line: Line, how: str, count: int) -> None:
    """The one that keeps the line is among them, and somebody waits meanwhile, in vain and not."""
    away = [line.lead, line.others[0]][:count]
    proxies = [line.nodes.proxies[index] for index in away]
    ports = [proxy.target for proxy in proxies]
    line.taken()
    waiting = [line.start(1), line.start(10)]
    eventually(line.stands, "it does not stand in line")
    for proxy in proxies:
        if how == "silent":
            proxy.blackhole()
        else:
            proxy.target = ("127.0.0.1", 1)
            proxy.cut()
    with pytest.raises((LockTimeout, BackendUnavailable)):
        waiting[0].result(10)
    line.free()
    waiting[1].result(10)
    line.taken()
    for proxy, port in zip(proxies, ports, strict=True):
        proxy.target = port
        proxy.heal()
    line.nobody(LATE)


@pytest.mark.parametrize("line", ["async"], indirect=True)
def test_r7_tasks_cancelled_at_any_moment(line: Line) -> None:
    lock = line.nodes.lock(line.name, timeout=5)
    dice = random.Random(7)

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0)

    async def main() -> None:
        for number in range(500):
            if number % 50 == 0:
                line.free() if number % 100 else line.taken()
            task = asyncio.create_task(work())
            await asyncio.sleep(dice.uniform(0, 0.012))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, LockNotAcquired):
                await task
            if number % 25 == 0:
                began = time.monotonic()
                await asyncio.to_thread(eventually, lambda: not line.stands(), f"a ghost after {number}")
                within(time.monotonic() - began, SOON)

    asyncio.run(main())
    line.nobody()


@pytest.mark.parametrize("line", ["sync"], indirect=True)
def test_r7_interrupted_anywhere(line: Line) -> None:
    """While somebody else has it."""
    lock = line.nodes.lock(line.name, timeout=0.06)  # a busy machine gets as far as the queue within it
    line.taken()

    def attempt() -> None:
        with contextlib.suppress(LockNotAcquired, BackendUnavailable):
            lock.acquire()

    def clean() -> None:
        tick()
        began = time.monotonic()
        eventually(lambda: not line.stands(), "a ghost stands in line", pause=0.001)
        within(time.monotonic() - began, SOON)

    assert interrupted_everywhere(attempt, clean, acquire, waiter) > 50


def test_another_grant_is_not_taken_back_with_the_first(nodes: Nodes, key: LockKey, name: str) -> None:
    """Of one claim: what releases the first may be sent for seconds, if its answers were lost."""
    nodes.connect(name)
    backend: Any = registry.entry("five").backend
    claim = Claim(key=key, ttl=30, token=new_token())
    for proxy in nodes.proxies[:3]:
        proxy.swallow(2, cut=True)
    backend.release(backend.try_acquire(claim, 5))
    grant = backend.try_acquire(claim, 5)
    eventually(lambda: sum(nodes.keys()) >= 3, "it was not granted")
    until = monotonic() + UNDO_WINDOW
    while monotonic() < until:
        backend.tick(monotonic())
        assert sum(nodes.keys()) >= 3, nodes.keys()
        time.sleep(0.05)
    assert backend.release(grant)
