"""Several contexts in one thread: their flows are stepped by hand, on a clock of the test's own.

What is stepped is the real thing: ``acquire_flow``, the lock table of the process and the memory backend. What is kept
is what a holder may rely on: who was granted what, and until when.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.locks.lock import Lock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.records import Claim, Grant
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow, Step
    from django_distlock.keys import LockKey
    from django_distlock.locks.lease import Lease

TTL = 10.0


@dataclass
class Right:
    """What a holder may rely on: ``until`` is the end of the lease; ``engine_until`` that of the engine's own entry."""

    name: str
    shared: bool
    until: float
    engine_until: float


class Actor:
    """One execution context: its flow if it is in the middle of an acquire, and the step that flow waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flow: Flow[Lease | None] | None = None
        self.step: Step | None = None

    def __repr__(self) -> str:
        return self.name


# Flows that were begun. One that has not come to its end, in an example that was given up, would be closed by the
# garbage collector at any allocation, also where this thread has the mutex of the lock table: arun() keeps its flows,
# too.
_flows: list[Flow[Any]] = []


def close_flows() -> None:
    while _flows:
        _flows.pop().close()


class World:
    def __init__(self) -> None:
        close_flows()
        self._patch = pytest.MonkeyPatch()
        self.clock = FakeClock(self._patch)
        self.current: Actor | None = None
        self._patch.setattr("django_distlock.manager.acquire.current", lambda: self.current)
        self.backend: Any = registry.entry("memory").backend
        self.leases: list[Lease] = []
        self.rights: dict[str, Right] = {}
        self.fences: dict[str, int] = {}

    def close(self) -> None:
        close_flows()
        self._patch.undo()
        for hold in list(lock_table.everything()):
            lock_table.end(hold)
        self.backend.close()

    @staticmethod
    def key(name: str) -> LockKey:
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
        if step.method.__name__ == "park":
            if not step.method.__self__.woken:
                if not out_of_time or math.isinf(step.args[0]):
                    return None
                self.clock.time += step.args[0]
            result: Any = step.method(0)
        elif step.method.__name__ == "sleep":
            self.clock.time += step.args[0]
            result = None
        else:
            result = step.method(*step.args)
            self._observe(step, result)
        return self._resume(actor, lambda flow: flow.send(result))

    def cancel(self, actor: Actor) -> None:
        """Throw CancelledError into the flow, then do what it does to clean up."""
        try:
            self._resume(actor, lambda flow: flow.throw(asyncio.CancelledError()))
            while actor.step is not None:
                assert actor.step.method.__name__ in ("release", "withdraw"), "a cancelled acquire goes on"
                self.advance(actor)
        except asyncio.CancelledError:
            return
        raise AssertionError("a cancellation was swallowed")

    def _resume(self, actor: Actor, how: Any) -> Any:
        self.current = actor
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
        return None

    # what was granted

    def _observe(self, step: Step, result: Any) -> None:
        if step.method.__name__ == "ask" and result is not None:
            self.granted(result)
        elif step.method.__name__ == "release":
            self.rights.pop(step.args[0].claim.token, None)

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
