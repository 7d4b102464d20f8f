"""A round: one request to each of several nodes, sent to all of them at once, until the replies are enough.

What is enough is decided by functions of values, without clock and sockets. The rules are those of
https://redis.io/docs/latest/develop/use/patterns/distributed-locks/: a lock belongs to the caller to which a majority
has granted it in time.
"""

from __future__ import annotations

import asyncio
import math
import select
from enum import Enum, auto
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.places import Place
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import drift

from .connection import PENDING, ClusterNode, timed_out
from .nodes import CONNECT_PAUSE, CONNECT_TIMEOUT, HELD_UP, NodeRequest, Nodes, Pipeline, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A connection on which a reply is due for longer than this, and than a node may take, is closed; seconds.
SILENT = 0.25
# The time for the reply to a request that no caller waits for; seconds.
LATE_REPLY = 0.5


class NodeAnswer(Enum):
    """What one node has said so far."""

    PENDING = auto()  # asked, and its time is not over
    GRANTED = auto()
    REFUSED = auto()  # somebody else has it there; it is not ours there
    FAILED = auto()  # cannot be reached, or answered with an error


class Verdict(Enum):
    """What to do."""

    WAIT = auto()
    GRANTED = auto()
    REFUSED = auto()
    UNAVAILABLE = auto()  # the nodes that can be reached are too few to decide anything


def majority(nodes: int) -> int:
    """How many of ``nodes`` must agree: any two majorities have a node in common."""
    return nodes // 2 + 1


def validity(ttl: float, elapsed: float) -> float:
    """Seconds for which a lock may be relied on that was asked for ``elapsed`` seconds ago. Not above zero: never."""
    return ttl - elapsed - drift(ttl)


def decide(answers: Sequence[NodeAnswer], *, elapsed: float, ttl: float, patience: float) -> Verdict:
    """Is the lock ours? ``patience``: seconds that a node has for its answer.

    Whatever is not GRANTED has to be taken back on every node that was asked.
    """
    needed = majority(len(answers))
    granted = answers.count(NodeAnswer.GRANTED)
    in_time = validity(ttl, elapsed) > 0
    if granted >= needed and in_time:
        return Verdict.GRANTED
    refused = answers.count(NodeAnswer.REFUSED)
    pending = answers.count(NodeAnswer.PENDING) if elapsed < patience else 0
    if in_time and granted + pending >= needed:
        return Verdict.WAIT
    return Verdict.REFUSED if granted + refused + pending >= needed else Verdict.UNAVAILABLE


def confirm(answers: Sequence[NodeAnswer], elapsed: float, patience: float) -> Verdict:
    """Do we still have it? For extensions, releases and looks.

    GRANTED if a majority says so, REFUSED if so many deny it that a majority may be somebody else's, UNAVAILABLE if
    neither can be known.
    """
    needed = majority(len(answers))
    if answers.count(NodeAnswer.GRANTED) >= needed:
        return Verdict.GRANTED
    if answers.count(NodeAnswer.REFUSED) > len(answers) - needed:
        return Verdict.REFUSED
    if elapsed < patience and NodeAnswer.PENDING in answers:
        return Verdict.WAIT
    return Verdict.UNAVAILABLE


def heard(answers: Sequence[NodeAnswer], elapsed: float, patience: float) -> Verdict:
    """Wait for every node that answers soon. GRANTED if any did; for listings."""
    if NodeAnswer.PENDING in answers and elapsed < patience:
        return Verdict.WAIT
    return Verdict.GRANTED if NodeAnswer.GRANTED in answers else Verdict.UNAVAILABLE


if TYPE_CHECKING:
    # Gets the answers, the seconds since the first request, and those that an answer may take.
    Judge = Callable[[Sequence[NodeAnswer], float, float], Verdict]


class Crowded(BackendUnavailable):
    """Other callers of this process used all connections until the deadline."""


class RedlockBackendUnavailable(BackendUnavailable):
    """Too few nodes answered. ``lost``: connections were lost, so asking again may do better."""

    lost = False


class Round:
    """``requests`` has one entry for each node, None for a node that is not asked.

    The round owns a connection to each node from :meth:`ask` to :meth:`close`. ``own`` is one that its caller keeps,
    ``prefer`` are those that an earlier request may still be waiting on.
    """

    def __init__(
        self,
        nodes: Nodes,
        requests: Sequence[NodeRequest | None],
        own: Pipeline | None = None,
        prefer: Sequence[Pipeline | None] = (),
    ) -> None:
        self.nodes = nodes
        self.requests = list(requests)
        self.pipelines: list[Pipeline | None] = [None] * len(self.requests)
        self.sent: list[Sent | None] = [None] * len(self.requests)
        self.answers = [NodeAnswer.FAILED] * len(self.requests)
        self.asked_at = 0.0
        self.over = False
        self._own, self._prefer = own, prefer
        self._place = Place()
        self._repeated: set[int] = set()
        self._lost: list[int] = []
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        if own is not None:
            self.pipelines[own.node.number - 1] = own

    async def ask(
        self,
        judge: Judge,
        patience: float,
        until: float,
        settle: float = 0.0,
        *,
        least: int = 0,
        rest: bool = False,
    ) -> Verdict:
        """Send the requests that have not been sent, and listen until ``judge`` has a verdict.

        Each node has ``patience`` seconds for its reply; all of it ends at the monotonic time ``until``. ``settle``:
        after the verdict, listen to the others for that time. ``least``: send nothing if fewer nodes are connected;
        what these could answer would decide nothing. ``rest``: the answers of an earlier call were not enough, so wait
        ``patience`` seconds for the connections to the other nodes.
        """
        await self._connect(until, patience if rest else HELD_UP, rest)
        if sum(self._connected(index) for index in range(len(self.pipelines))) < least:
            return Verdict.UNAVAILABLE
        now = clock.now()
        end = min(until, now + patience)
        self.asked_at = self.asked_at or now
        for index, request in enumerate(self.requests):
            if request is not None and self.sent[index] is None:
                self._send(index, request, now + max(patience, SILENT))
        while True:
            now = clock.now()
            if now >= end and NodeAnswer.PENDING in self.answers:
                self._listen(now)  # replies that have come count: this process may be late itself
            verdict, self.over = judge(self.answers, now - self.asked_at, end - self.asked_at), now >= end
            if verdict is not Verdict.WAIT:
                if not settle or NodeAnswer.PENDING not in self.answers or now >= end:
                    return verdict
                end, settle = min(end, now + settle), 0.0
                await self.settle(end)
                return judge(self.answers, clock.now() - self.asked_at, end - self.asked_at)
            if not self._lost:
                await self._alisten(end)
            if self._lost:
                await self._repeat(until, patience)
                end = min(until, clock.now() + patience)

    async def settle(self, end: float, index: int | None = None) -> None:
        """Listen until all nodes have answered, or the one with that index. At most until ``end`` (monotonic)."""
        while clock.now() < end:
            if NodeAnswer.PENDING not in (self.answers if index is None else self.answers[index : index + 1]):
                return
            await self._alisten(end)

    async def _repeat(self, until: float, patience: float) -> None:
        """Send again, on new connections, what was lost with the old ones."""
        lost, self._lost = self._lost, []
        self._repeated.update(lost)
        await self._connect(until, max(2 * HELD_UP, patience))
        for index in lost:
            request = self.requests[index]
            if request is not None:
                self._send(index, request, clock.now() + max(patience, SILENT))

    # connections

    async def _connect(self, until: float, longer: float, also_troubled: bool = False) -> None:
        """Take a connection to each node that has none. If the others are enough, wait ``longer`` seconds for the rest,
        and not for nodes in trouble, unless ``also_troubled``.

        Crowded if other callers use all connections.
        """
        places = self.nodes.places
        if not places.take(self._place) and not await places.enter(self._place, until - clock.now()):
            raise Crowded("The connections to the Redis nodes are busy.")
        missing = self._take()
        if not missing:
            return
        wanted = sum(request is not None for request in self.requests)
        nodes, now = self.nodes.all, clock.now()
        fresh = also_troubled or any(not nodes[index].trouble for index in missing)
        until, soon = min(until, now + CONNECT_TIMEOUT), now + longer if fresh else now
        while missing and self.nodes.connect([nodes[index] for index in missing]):
            enough = wanted - len(missing) >= min(wanted, majority(len(self.requests)))
            if clock.now() >= (min(until, soon) if enough else until):
                return
            await pause(CONNECT_PAUSE)
            missing = self._take()

    def _connected(self, index: int) -> bool:
        pipeline = self.pipelines[index]
        return pipeline is not None and pipeline.link is not None

    def _take(self) -> list[int]:
        """Take the connections at hand. The nodes that have none."""
        missing = []
        for index, request in enumerate(self.requests):
            if request is not None and not self._connected(index):
                prefer = self._prefer[index] if self._prefer else None
                pipeline = self.pipelines[index] = self.nodes.all[index].take(prefer)
                if pipeline is None:
                    missing.append(index)
        return missing

    # requests and replies

    def _send(self, index: int, request: NodeRequest, until: float) -> None:
        pipeline = self.pipelines[index]
        if pipeline is None:
            self.answers[index] = NodeAnswer.FAILED
            return
        self.sent[index] = pipeline.send(request, until)
        if pipeline.link is None:
            self._lose(index, request)
            return
        self.answers[index] = NodeAnswer.PENDING
        self._by_fd[pipeline.link.fd] = index
        self._poll.register(pipeline.link.fd, select.POLLIN)

    def _lose(self, index: int, request: NodeRequest) -> None:
        if not request.repeat or index in self._repeated:
            self.answers[index] = NodeAnswer.FAILED
        elif index not in self._lost:
            self.answers[index] = NodeAnswer.PENDING
            self._lost.append(index)

    def _listen(self, until: float) -> None:
        left = until - clock.now()
        for fd, _ in self._poll.poll(math.ceil(left * 1000) if left > 0 else 0):
            self._hear(fd)

    async def _alisten(self, until: float) -> None:
        if not in_task():
            self._listen(until)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(0.0, until - clock.now()), _settle, future)
        fds = list(self._by_fd)
        try:
            for fd in fds:
                loop.add_reader(fd, _settle, future)
            await future
        finally:
            timer.cancel()
            for fd in fds:
                loop.remove_reader(fd)
        for fd in fds:
            self._hear(fd)

    def _hear(self, fd: int) -> None:
        index = self._by_fd[fd]
        pipeline, sent, request = self.pipelines[index], self.sent[index], self.requests[index]
        assert pipeline is not None and sent is not None and request is not None  # noqa: PT018, S101 - it was sent
        pipeline.hear()
        if not sent.lost and sent.reply is PENDING:
            return
        del self._by_fd[fd]
        self._poll.unregister(fd)
        if sent.lost:
            self._lose(index, request)
        else:
            self.answers[index] = self._answer(index, sent)

    def _answer(self, index: int, sent: Sent) -> NodeAnswer:
        reply = sent.reply
        if isinstance(reply, Exception):
            self.nodes.all[index].error = reply
            return NodeAnswer.FAILED
        if reply is not None and (not isinstance(reply, int) or reply > 0):
            return NodeAnswer.GRANTED
        # a "no" to the second request may only mean that the first one was executed
        return NodeAnswer.FAILED if index in self._repeated else NodeAnswer.REFUSED

    def tell(self, index: int, request: NodeRequest) -> Sent | None:
        """Send a request behind the others and do not wait for its reply. If that fails, it is done later."""
        pipeline = self.pipelines[index]
        if pipeline is not None:
            return pipeline.send(request, clock.now() + LATE_REPLY)
        if request.undo is not None:
            self.nodes.undo_later(index, request.undo)
        return None

    @property
    def complete(self) -> bool:
        """Was every request sent?"""
        return all(request is None or sent for request, sent in zip(self.requests, self.sent, strict=True))

    def repeated_in_vain(self) -> bool:
        """Has a node refused a request that it may have executed before?"""
        return any(
            sent is not None and sent.reply == 0 and index in self._repeated for index, sent in enumerate(self.sent)
        )

    def may_be_first(self, index: int) -> bool:
        """May a node execute this request before the earlier one? It went out on another connection than that, which
        somebody else had at that moment; the earlier reply may have come since."""
        sent, prefer = self.sent[index], self._prefer[index] if self._prefer else None
        return prefer is not None and (sent is None or sent.pipeline is not prefer)

    def close(self) -> None:
        """Give the connections back."""
        for index, pipeline in enumerate(self.pipelines):
            self.pipelines[index] = None
            if pipeline is not None and pipeline is not self._own:
                pipeline.node.put(pipeline)
        self.nodes.places.leave(self._place)

    def error(self) -> RedlockBackendUnavailable:
        """The error for too few answers. Connections on which the nodes are silent are lost with it."""
        for pipeline in self.pipelines:
            if pipeline is not None and pipeline.overdue(clock.now()):
                pipeline.node.silence(pipeline)
        # a node that is connected and was not asked has nothing to answer
        asked = [
            request is not None and (self.sent[index] is not None or not self._connected(index))
            for index, request in enumerate(self.requests)
        ]
        errors = [
            TimeoutError("There was no connection in time.") if node.connecting and node.error is None else node.error
            for node in self.nodes.all
        ]
        error = unavailable(self.answers, asked, errors, over=self.over)
        error.lost = any(each is not None and each.lost for each in self.sent)
        return error


def unavailable(
    answers: Sequence[NodeAnswer],
    asked: Sequence[bool],
    errors: Sequence[BaseException | None],
    *,
    over: bool,
) -> RedlockBackendUnavailable:
    """The error for too few answers: which nodes failed, and which did not answer in time."""
    failed: list[int] = []
    late: list[int] = []
    for index, answer in enumerate(answers):
        if not asked[index]:
            continue
        if answer is NodeAnswer.FAILED:
            (late if timed_out(errors[index]) else failed).append(index)
        elif answer is NodeAnswer.PENDING and over:
            late.append(index)
    nodes = len(answers)
    if not failed and not late:  # a vote whose reply was lost does not count
        return RedlockBackendUnavailable(f"No majority of the {nodes} Redis nodes confirms it.")
    causes = [error for index in failed if (error := errors[index]) is not None]
    kinds = sorted({type(error).__name__ for error in causes})
    failures = f"failed: {_numbers(failed)}" + (f" ({', '.join(kinds)})" if kinds else "")
    cause = causes[0] if causes else None
    if late and len(failed) <= nodes - majority(nodes):
        text = f"{len(late)} of {nodes} Redis nodes did not answer in time: {_numbers(late)}"
        text += f"; {len(failed)} {failures}" if failed else ""
        cause = TimeoutError("There was no answer in time.")
    else:  # these alone are too many
        text = f"{len(failed)} of {nodes} Redis nodes {failures}"
        text += f"; no answer yet: {_numbers(late)}" if late else ""
    clustered = [str(error) for error in causes if isinstance(error, ClusterNode)]
    error = RedlockBackendUnavailable(". ".join([text, *clustered[:1]]).removesuffix(".") + ".")
    error.__cause__ = cause
    return error


def _numbers(indexes: Sequence[int]) -> str:
    return ", ".join(str(index + 1) for index in indexes)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def ask_all(nodes: Nodes, requests: Mapping[int, NodeRequest], until: float) -> Round:
    """One request to each of some nodes, by index. Those that do not answer soon do not count."""
    ballot = Round(nodes, [requests.get(index) for index in range(len(nodes.all))])
    try:
        await ballot.ask(heard, until - clock.now(), until)
    finally:
        ballot.close()
    return ballot
