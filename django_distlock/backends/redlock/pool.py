"""The lanes of a process: opened when needed, closed when idle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from django_distlock.backends.redis.target import ClusterNode, timed_out
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step
from django_distlock.exceptions import BackendUnavailable

from .lanes import Lane
from .nodes import CONNECT_TIMEOUT, MOST_CONNECTING, Connectors, Node
from .quorum import Answer, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django_distlock.backends.redis.target import Target
    from django_distlock.concurrency.flow import Flow

    from .inquiry import Outcome

# The connections to each node at most; a further one is opened when all others are in use.
LANES = MOST_CONNECTING
TICK = 0.5


def _numbers(nodes: Iterable[Node]) -> str:
    return ", ".join(str(node.number) for node in nodes)


class Crowded(BackendUnavailable):
    """There was no time left to ask: others of this process had all connections."""


class Lanes:
    """``wake_at`` asks for a tick at a monotonic time."""

    def __init__(self, targets: Sequence[Target], thread_name: str, wake_at: Callable[[float], None]) -> None:
        self._connectors = Connectors(thread_name, len(targets) * MOST_CONNECTING)
        self.nodes = [Node(number, target, self._connectors) for number, target in enumerate(targets, 1)]
        self._wake_at = wake_at
        self._lanes: dict[int, Lane] = {}

    def lane(self, number: int) -> Lane:
        """Made when it is first needed."""
        lanes = self._lanes
        lane = lanes.get(number)
        if lane is None:
            # two threads may make one each: that of the first is used; and none that close() has not seen
            mine = Lane(self.nodes)
            lane = lanes.setdefault(number, mine)
            if lane is not mine or lanes is not self._lanes:
                mine.close()
            self._wake_at(monotonic() + TICK)
        return lane

    def enter(self, lane: Lane | None, seconds: float) -> Flow[Lane]:
        """The turn on ``lane`` or, if it is None or has been closed, on the first that is free.

        Crowded if there is none for so long.
        """
        until = monotonic() + seconds
        while True:
            mine = False
            if lane is None or lane.closed:
                lane, mine = self._pick()
            mine = mine or lane.turn.try_acquire()
            if not (mine or (yield Step(lane.turn.acquire, lane.turn.aacquire, (until - monotonic(),)))):
                raise Crowded("The connections to the Redis nodes are busy.")
            if not lane.closed:  # for being idle, just before
                return lane
            lane.leave()

    def _pick(self) -> tuple[Lane, bool]:
        """A lane, and whether it was free, so that the turn is now ours."""
        for number in range(LANES):
            lane = self.lane(number)
            if lane.turn.try_acquire():
                return lane, True
        return self.lane(random.randrange(LANES)), False  # noqa: S311 - spreads waiters, guards no secret

    def unavailable(self, outcome: Outcome) -> BackendUnavailable:
        """The error for too few answers. Nodes are counted from 1: an address may hold a password."""
        failed, late = self._unheard(outcome)
        if not failed and not late:  # a vote that was lost on the way does not count
            return BackendUnavailable(f"No majority of the {len(self.nodes)} Redis nodes confirms it.")
        errors = [node.error for node in failed if node.error is not None]
        kinds = sorted({type(error).__name__ for error in errors})
        of = f"of {len(self.nodes)} Redis nodes "
        failures = f"failed: {_numbers(failed)}" + (f" ({', '.join(kinds)})" if kinds else "")
        cause = errors[0] if errors else None
        if late and len(failed) <= len(self.nodes) - majority(len(self.nodes)):
            said = f"{len(late)} {of}did not answer in time: {_numbers(late)}"
            said += f"; {len(failed)} {failures}" if failed else ""
            cause = TimeoutError("There was no answer in time.")
        else:  # however long the others had been waited for
            said = f"{len(failed)} {of}{failures}" + (f"; no answer yet: {_numbers(late)}" if late else "")
        clustered = [str(error) for error in errors if isinstance(error, ClusterNode)]
        error = BackendUnavailable(". ".join([said, *clustered[:1]]).removesuffix(".") + ".")
        error.__cause__ = cause
        return error

    def _unheard(self, outcome: Outcome) -> tuple[list[Node], list[Node]]:
        """Those that failed, and those that took too long. Who was not asked is none of them."""
        failed: list[Node] = []
        late: list[Node] = []
        for node, answer, slot in zip(self.nodes, outcome.answers, outcome.slots, strict=True):
            if slot is None:
                continue
            if answer is Answer.FAILED or (answer is Answer.SLOW and not slot.sent):  # it is in trouble
                (late if timed_out(node.error) else failed).append(node)
            elif answer is Answer.SLOW or (answer is Answer.PENDING and outcome.over):
                late.append(node)
        return failed, late

    def tick(self, now: float) -> float | None:
        """Look after those that nobody uses; when to do so again."""
        lanes = self._lanes
        for number, lane in list(lanes.items()):
            if not lane.turn.try_acquire():
                continue
            try:
                if lane.idle(now):
                    lanes.pop(number, None)
                    lane.close()
                else:
                    lane.tend(now)
            finally:
                lane.leave()
        return now + TICK if self._lanes else None

    def close(self) -> None:
        """Close every connection; the next question opens others."""
        lanes, self._lanes = self._lanes, {}
        for lane in list(lanes.values()):
            lane.close()
        self._connectors.join(monotonic() + 2 * CONNECT_TIMEOUT)

    def abandon(self) -> None:
        """In the child of a fork: the connections are the parent's, who must not notice."""
        for lane in self._lanes.values():
            lane.abandon()
