"""R1, R2, R7, R8, R16, R17, R19, R21: contexts, strangers, cancellations and losses in any order.

Each rule is one step of one context in one thread, on a clock of the test's own: what is explored are interleavings of
the real thing (acquire, the lock table, the memory backend), and a failure is replayed exactly.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_distlock.concurrency import leftovers
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import DeadlockDetected, LockLost, LockNotHeld
from django_distlock.locks.lock import Lock
from django_distlock.manager.lock_table import Hold, State, lock_table
from django_distlock.manager.registry import registry
from django_distlock.records import Claim, Grant
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from django_distlock.locks.lease import Lease

TTL = 10.0


@dataclass
class Right:
    """What a holder may rely on: ``until`` is the end of the lease; ``engine_until`` that of the engine's own entry."""

    name: str
    shared: bool
    until: float
    engine_until: float


class Step:
    """A wait, or a call of the engine, that is done when the test says so: to await it stops the acquire."""

    def __init__(self, name: str, call: Callable[[], Any], about: Any) -> None:
        self.name, self.call, self.about = name, call, about

    def __await__(self) -> Generator[Step, Any, Any]:
        return (yield self)


class Actor:
    """One execution context: its acquire if it is in the middle of one, and the step that this waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flow: Coroutine[Any, Any, Lease | None] | None = None
        self.step: Step | None = None

    def __repr__(self) -> str:
        return self.name


# Acquires that were begun. The garbage collector would close one at any allocation, also where this thread has the
# mutex of the lock table.
_flows: list[Coroutine[Any, Any, Any]] = []


def close_flows() -> None:
    """Close them, and do what they leave, as the keepalive thread would."""
    while _flows:
        _flows.pop().close()
    while not leftovers.empty():
        job = leftovers.take(0)
        if job is not None:
            job()


class World:
    def __init__(self) -> None:
        close_flows()
        self._patch = pytest.MonkeyPatch()
        self.clock = FakeClock(self._patch)
        self.current: Actor | None = None
        self.resuming = False  # is an acquire under way, that stops at each step?
        self._patch.setattr("django_distlock.manager.acquire.current", lambda: self.current)
        self.backend: Any = registry.entry("memory").backend
        self._stop_at_each_step()
        self.leases: list[Lease] = []
        self.rights: dict[str, Right] = {}
        self.fences: dict[str, int] = {}

    def _stop_at_each_step(self) -> None:
        backend = self.backend
        ask = backend.try_acquire
        self._patch.setattr(backend, "atry_acquire", lambda claim, wait: Step("ask", partial(ask, claim), claim))
        self._patch.setattr(Parker, "park", lambda parker, timeout: Step("park", parker.leave, (parker, timeout)))
        for module in ("acquire", "release"):
            self._patch.setattr(f"django_distlock.manager.{module}.in_task", lambda: self.resuming)
        self._patch.setattr(backend, "arelease", lambda grant: Step("release", lambda: backend.release(grant), grant))
        self._patch.setattr(
            "django_distlock.manager.acquire.pause", lambda seconds: Step("wait", lambda: None, seconds)
        )

    def close(self) -> None:
        close_flows()
        self._patch.undo()
        for hold in lock_table.all():
            lock_table.end(hold)
        self.backend.close()

    @staticmethod
    def key(name: str) -> Any:
        return registry.entry("memory").key(name)

    # contexts

    def begin(self, actor: Actor, name: str, shared: bool, timeout: float | None) -> Any:
        """The Lease or None; ``actor.step`` is set if the flow has not come to its end."""
        lock = Lock(name, using="memory", ttl=TTL, shared=shared)
        actor.flow = lock._flow(timeout, self.clock.time)
        _flows.append(actor.flow)
        return self._resume(actor, lambda flow: flow.send(None))

    def advance(self, actor: Actor, out_of_time: bool = False) -> Any:
        """Do the step that ``actor`` waits for. One that is parked goes on if it was woken or its time is over."""
        step = actor.step
        assert step is not None
        if step.name == "park":
            parker, timeout = step.about
            if not parker.woken:
                if not out_of_time or math.isinf(timeout):
                    return None
                self.clock.time += timeout
        result = step.call()
        self._observe(step, result)
        return self._resume(actor, lambda flow: flow.send(result))

    def cancel(self, actor: Actor) -> None:
        """Throw CancelledError into the flow, then do what it does to clean up."""
        try:
            self._resume(actor, lambda flow: flow.throw(asyncio.CancelledError()))
            while actor.step is not None:
                assert actor.step.name == "release", "a cancelled acquire goes on"
                self.advance(actor)
        except asyncio.CancelledError:
            return
        raise AssertionError("a cancellation was swallowed")

    def _resume(self, actor: Actor, how: Any) -> Any:
        self.current, self.resuming = actor, True
        try:
            actor.step = how(actor.flow)
        except StopIteration as stop:
            actor.flow = actor.step = None
            if stop.value is not None:
                self.leases.append(stop.value)
            return stop.value
        except BaseException:
            actor.flow = actor.step = None
            raise
        finally:
            self.resuming = False
        return None

    # what was granted

    def _observe(self, step: Step, result: Any) -> None:
        if step.name == "ask" and result is not None:
            self.granted(result)
        elif step.name == "release":
            self.rights.pop(step.about.claim.token, None)

    def granted(self, grant: Grant) -> None:
        claim, now = grant.claim, self.clock.time
        assert grant.valid_until is not None
        assert grant.fence is not None
        rivals = [right for right in self.rights.values() if right.name == claim.key.name and right.until > now]
        assert all(right.shared and claim.shared for right in rivals), f"{claim.key.name} was given away twice"
        assert grant.fence > self.fences.get(claim.key.name, 0), "R21: fences rise"
        self.fences[claim.key.name] = grant.fence
        self.rights[claim.token] = Right(claim.key.name, claim.shared, grant.valid_until, now + (claim.ttl or 0))

    def right(self, lease: Lease) -> Right | None:
        return self.rights.get(lease._grant.claim.token)

    def valid(self, lease: Lease) -> bool:
        right = self.right(lease)
        return right is not None and right.until > self.clock.time

    def stranger(self, name: str, shared: bool, number: int) -> Grant | None:
        """Another process asks for the lock."""
        claim = Claim(key=self.key(name), shared=shared, ttl=TTL, token=f"stranger {number}")
        grant: Grant | None = self.backend.try_acquire(claim)
        if grant is not None:
            self.granted(grant)
        return grant


def excludes(one: Hold, other: Hold) -> bool:
    return not (one.shared and other.shared)


WHO = st.integers(0, 2)
NAME = st.sampled_from(["x", "y"])
SHARED = st.sampled_from([False, False, True])


class Contexts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.actors = [Actor(name) for name in "abc"]
        self.strangers: list[Grant] = []
        self.met = 0
        self.arrivals: dict[Hold, int] = {}

    def busy(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.step is not None]

    def mine(self, actor: Actor, name: str) -> list[Lease]:
        return [
            lease
            for lease in self.world.leases
            if lease.owner is actor and lease.name == name and not lease._released and lease._hold.lost is None
        ]

    @rule(who=WHO, name=NAME, shared=SHARED, timeout=st.sampled_from([0, 5, None]))
    def begin(self, who: int, name: str, shared: bool, timeout: float | None) -> None:
        actor = self.actors[who]
        if actor.step is not None:
            return
        mine = self.mine(actor, name)
        fence = mine[0].fence if mine else None
        try:
            lease = self.world.begin(actor, name, shared, timeout)
        except DeadlockDetected as error:
            if "would wait for itself" in str(error):
                assert mine
                assert mine[0].shared
                assert not shared
            else:
                assert timeout != 0
                assert self.would_close_a_circle(actor, name)
            return
        if mine and mine[0]._hold.lost is None:
            assert lease is not None, "R2: re-entry asks nobody"
            assert shared or not mine[0].shared, "R2: a reader became a writer"
            assert lease.fence == fence
            assert lease._hold is mine[0]._hold
        if timeout == 0 and actor.step is not None:
            assert actor.step.name == "ask", "R5: who does not wait asks the engine once, or nobody"

    @rule(who=WHO, name=NAME, shared=SHARED, timeout=st.sampled_from([5, None, None]))
    def take(self, who: int, name: str, shared: bool, timeout: float | None) -> None:
        """Begin, and go on until it is done, parked, or busy at the engine: most circles need several holders."""
        actor = self.actors[who]
        if actor.step is not None:
            return
        self.begin(who, name, shared, timeout)
        while actor.step is not None and actor.step.name in ("ask", "release"):
            self.world.advance(actor)

    @rule(who=WHO, first=NAME, second=NAME)
    def take_two(self, who: int, first: str, second: str) -> None:
        for name in (first, second):
            self.take(who, name, False, None)

    def would_close_a_circle(self, actor: Actor, name: str) -> bool:
        """Does anybody who has or wants ``name`` wait, directly or over others, for ``actor``?"""
        seen: set[Any] = set()
        pending = [each.owner for each in lock_table.all() if each.key.name == name]
        while pending:
            owner = pending.pop()
            if owner is actor:
                return True
            if owner not in seen:
                seen.add(owner)
                wanted = {h.key.name for h in lock_table.all() if h.owner is owner and h.waits}
                pending += [each.owner for each in lock_table.all() if each.key.name in wanted]
        return False

    @precondition(lambda self: self.busy())
    @rule(pick=st.integers(0, 3), out_of_time=st.booleans())
    def advance(self, pick: int, out_of_time: bool) -> None:
        busy = self.busy()
        actor = busy[pick % len(busy)]
        lease = self.world.advance(actor, out_of_time)
        if lease is not None:
            assert self.world.right(lease) is not None, "a lease without a grant"
            assert lease.owner is actor

    @precondition(lambda self: self.busy())
    @rule(pick=st.integers(0, 3))
    def cancel(self, pick: int) -> None:
        busy = self.busy()
        actor = busy[pick % len(busy)]
        self.world.cancel(actor)
        left = [each for each in lock_table.all() if each.owner is actor]
        assert all(each.state is State.HELD for each in left), "R7: a cancelled acquire left something"

    @precondition(lambda self: self.world.leases)
    @rule(pick=st.integers(0, 50), again=st.booleans())
    def release(self, pick: int, again: bool) -> None:
        lease = self.world.leases.pop(pick % len(self.world.leases))
        self.give_back(lease)
        if again:
            lease.release()
        assert not lease.held
        with pytest.raises((LockLost, LockNotHeld)):
            lease.ensure_held()

    def give_back(self, lease: Lease) -> None:
        """By whoever calls: a Lease belongs to no thread (R16)."""
        world = self.world
        right, last = world.right(lease), len(lease._hold.leases) == 1
        known_lost = lease._hold.lost is not None
        gone = right is None or right.engine_until <= world.clock.time
        try:
            lease.release()
        except LockLost:
            assert known_lost or gone
        else:
            assert not known_lost
            assert not (last and gone), "R17: the release of a lost lock said nothing"
        if last:
            world.rights.pop(lease._grant.claim.token, None)

    @precondition(lambda self: self.world.leases)
    @rule(pick=st.integers(0, 50), ttl=st.sampled_from([1.0, TTL, 50.0]))
    def extend(self, pick: int, ttl: float) -> None:
        world = self.world
        lease = world.leases[pick % len(world.leases)]
        valid, right = world.valid(lease), world.right(lease)
        try:
            lease.extend(ttl)
        except LockLost:
            assert not valid or lease._hold.lost is not None
        else:
            assert valid, "R20: a lease that had ended was revived"
            assert right is not None
            assert lease.valid_until is not None
            assert world.clock.time < lease.valid_until < world.clock.time + ttl, "R19"
            right.until, right.engine_until = lease.valid_until, world.clock.time + ttl

    @precondition(lambda self: self.world.leases)
    @rule(pick=st.integers(0, 50))
    def look(self, pick: int) -> None:
        lease = self.world.leases[pick % len(self.world.leases)]
        known = lease._hold.lost is not None
        assert lease.lost is (known or not self.world.valid(lease)), "R18: at valid_until, not later"
        assert lease.held is not lease.lost

    @rule(seconds=st.sampled_from([0.05, 1.0, TTL]))
    def wait(self, seconds: float) -> None:
        self.world.clock.time += seconds

    @precondition(lambda self: len(self.world.leases) > 1)
    @rule(pick=st.integers(0, 50))
    def break_one(self, pick: int) -> None:
        found = list(self.world.backend.inspect())
        if not found:
            return
        info = found[pick % len(found)]
        assert self.world.backend.break_lock(info)
        assert not self.world.backend.break_lock(info)
        # two names may have one fence
        victims = [
            token
            for token, right in self.world.rights.items()
            if (right.name, self.fence_of(token)) == (info.name, info.fence)
        ]
        for token in victims:
            del self.world.rights[token]

    def fence_of(self, token: str) -> int | None:
        grants = [lease._grant for lease in self.world.leases] + self.strangers
        grants += [each.grant for each in lock_table.all() if each.grant is not None]
        return next((grant.fence for grant in grants if grant.claim.token == token), None)

    @precondition(lambda self: not self.strangers)
    @rule(name=NAME, shared=SHARED)
    def stranger_comes(self, name: str, shared: bool) -> None:
        self.met += 1
        grant = self.world.stranger(name, shared, self.met)
        if grant is not None:
            self.strangers.append(grant)

    @precondition(lambda self: self.strangers)
    @rule(pick=st.integers(0, 50))
    def stranger_goes(self, pick: int) -> None:
        grant = self.strangers.pop(pick % len(self.strangers))
        self.world.backend.release(grant)
        self.world.rights.pop(grant.claim.token, None)

    def slots(self) -> dict[str, tuple[list[Hold], list[Hold]]]:
        """Who holds and who waits for each name, in order of arrival."""
        found: dict[str, tuple[list[Hold], list[Hold]]] = {}
        for hold in lock_table.all():
            holders, queue = found.setdefault(hold.key.name, ([], []))
            (queue if hold.waits else holders).append(hold)
        return found

    @invariant()
    def in_order_of_arrival(self) -> None:
        """R1, R4: nobody comes in before another who came earlier and whom he keeps out, and the first one does."""
        for hold in lock_table.all():  # those that are new at one time are of one context
            self.arrivals.setdefault(hold, len(self.arrivals))
        for holders, queue in self.slots().values():
            assert len(holders) == 1 or all(each.shared for each in holders), "R1: two holders of one lock"
            assert queue == sorted(queue, key=self.arrivals.__getitem__)
            assert not queue or any(excludes(queue[0], each) for each in holders), "R4: the first one was not let in"
            for holder in holders:
                passed = [w for w in queue if self.arrivals[w] < self.arrivals[holder] and excludes(w, holder)]
                assert not passed, "R4: somebody was overtaken"

    @invariant()
    def nobody_waits_for_himself(self) -> None:
        """R8: no circle ever stands, however it came about."""
        waits: dict[Any, set[Any]] = {}
        for holders, queue in self.slots().values():
            for place, waiter in enumerate(queue):
                ahead = {each.owner for each in holders + queue[:place] if not (each.shared and waiter.shared)}
                waits.setdefault(waiter.owner, set()).update(ahead)
        while free := [owner for owner, others in waits.items() if not others & set(waits)]:
            for owner in free:
                del waits[owner]
        assert not waits, f"these wait for each other: {waits}"

    def teardown(self) -> None:
        """When everybody gives back, every acquire comes to its end, and nothing is left."""
        world = self.world
        try:
            for _ in range(200):
                while world.leases:
                    self.give_back(world.leases.pop())
                while self.strangers:
                    self.stranger_goes(0)
                for actor in self.busy():
                    world.advance(actor)
                if not self.busy() and not world.leases:
                    break
            assert not self.busy(), f"R7: an acquire never ends: {self.busy()}"
            assert not lock_table.all()
            assert not list(world.backend.inspect())
        finally:
            world.close()


Contexts.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestContexts = Contexts.TestCase
