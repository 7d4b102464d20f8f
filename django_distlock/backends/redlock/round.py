"""One request to each of several nodes, sent to all of them at once, until the answers are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.backends.redis.connection import PENDING, Connection, ConnectionFailed, ErrorReply
from django_distlock.backends.redis.server import NotUnderstood, Refused
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.sockets import any_ready
from django_distlock.exceptions import BackendUnavailable

from .node import ClusterNode
from .quorum import Answer, Verdict, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

    from django_distlock.backends.redis.scripts import Request
    from django_distlock.concurrency.outcome import Outcome

    from .node import Nodes

# How long a node is being connected to while the others, which are enough, are not asked yet; seconds.
GRACE = 0.1


class Round:
    """``requests``: by the number of the node. ``answers`` and ``replies`` follow.

    The round owns the ``open`` connections until :meth:`close`. ``behind``: connections on which a request is perhaps
    still under way that must be executed before. ``lead``: a node that the others are not enough without. ``voters``:
    the nodes of which a majority is needed (default: all).
    """

    def __init__(
        self,
        nodes: Nodes,
        requests: Mapping[int, Request],
        behind: Mapping[int, Connection] | None = None,
        lead: int | None = None,
        voters: Set[int] | None = None,
    ) -> None:
        self._nodes, self._requests, self._behind, self._lead = nodes, requests, behind or {}, lead
        self._voters = requests.keys() if voters is None else voters
        self.answers = [Answer.PENDING if number in requests else Answer.FAILED for number in range(len(nodes))]
        self.replies: dict[int, Any] = {}
        self.open: dict[int, Connection] = {}
        self._errors: dict[int, Exception] = {}
        self._sent: set[int] = set()
        self._began = clock.now()
        self.asked_at = 0.0
        self._turn = nodes.line.turn()

    async def run(self, judge: Callable[[Sequence[Answer]], Verdict], patience: float, until: float = 0.0) -> Verdict:
        """Connect, ask, and listen until ``judge`` has a verdict. Without an answer within ``patience`` seconds a node
        fails. ``until``: how long to wait behind the other rounds of this process; at least SILENCE."""
        end = max(until, self._began + SILENCE)
        if await self._turn.acquire(end - clock.now()):
            await self._connect(end)
            self._turn.release()
        else:
            self._not_connected(self._requests)
        self.asked_at = clock.now()
        for number, connection in list(self.open.items()):
            self._sent.add(number)
            try:
                connection.send_script(self._requests[number])
            except ConnectionFailed as error:
                self._fail(number, error)
        while (verdict := judge(self.answers)) is Verdict.WAIT:
            await self._listen(self.asked_at + patience)
        return verdict

    async def _connect(self, end: float) -> None:
        """Have connections to the nodes. They have SILENCE for that, at the monotonic time ``end`` none, and always
        GRACE if the others are enough."""
        limit = min(clock.now() + SILENCE, end)
        up = [number for number in self._requests if not self._nodes[number].down]
        missing: dict[int, Outcome[None]] = {}
        for number in self._requests:
            node = self._nodes[number]
            connection = node.again(self._behind.get(number))
            if connection is not None:
                self.open[number] = connection
            elif node.down and self._enough(up):
                node.retry()
                self._fail(number, node.error)
            else:
                missing[number] = node.open()
        while missing and self._enough([*self.open, *missing]):
            now, until = clock.now(), max(self._nodes[number].connecting_since for number in missing) + GRACE
            short = not self._enough(self.open)
            if not short and now >= until:
                self._turn.release()
            if short or (now >= until and self._lead in missing):
                until = max(until, limit)
            if now >= until or (short and self._nodes.in_vain_at > self._began):
                self._nodes.in_vain_at = now if short else self._nodes.in_vain_at
                self._not_connected(missing)
                return
            if await _one_done(missing.values(), until):
                self._take_opened(missing)
        for number in missing:
            self.answers[number] = Answer.FAILED

    def _enough(self, numbers: Iterable[int]) -> bool:
        return len(self._voters & {*numbers}) >= majority(len(self._nodes))

    def _not_connected(self, missing: Iterable[int]) -> None:
        for number in missing:
            self._fail(number, TimeoutError("There was no connection in time."))

    def _take_opened(self, missing: dict[int, Outcome[None]]) -> None:
        for number, attempt in list(missing.items()):
            if not attempt.done():
                continue
            node, error = self._nodes[number], attempt.exception()
            if isinstance(error, ConnectionFailed):
                self._fail(number, error)
            elif (connection := node.take()) is not None:
                self.open[number] = connection
            else:
                missing[number] = node.open()
                continue
            del missing[number]

    def awaits(self, number: int) -> bool:
        """May the node still answer?"""
        return self.answers[number] is Answer.PENDING

    async def _listen(self, end: float) -> None:
        waiting = {connection.fd: number for number, connection in self.open.items() if self.awaits(number)}
        heard = await any_ready(list(waiting), end)
        for fd in heard:
            self._hear(waiting[fd])
        if not heard and clock.now() >= end:
            for number in waiting.values():
                self.answers[number] = Answer.FAILED
                self._errors[number] = TimeoutError("There was no answer in time.")

    def _hear(self, number: int) -> None:
        connection, request = self.open[number], self._requests[number]
        try:
            reply = connection.take()
            if reply is PENDING:
                return
            if type(reply) is ErrorReply and reply.code == "NOSCRIPT":
                connection.send(request.whole)
                return
        except ConnectionFailed as error:
            self._fail(number, error)
            return
        if type(reply) is ErrorReply:
            self.answers[number], self._errors[number] = Answer.FAILED, Refused(reply)
            return
        if not request.understands(reply):
            self._fail(number, NotUnderstood(reply))
            return
        self.replies[number] = reply
        granted = reply[0] if isinstance(reply, list) else reply
        self.answers[number] = Answer.YES if granted else Answer.NO

    def _fail(self, number: int, error: Exception) -> None:
        self.answers[number], self._errors[number] = Answer.FAILED, error
        connection = self.open.pop(number, None)
        if connection is not None:
            self._nodes[number].lost(connection)

    def unheard(self) -> dict[int, Connection]:
        """The connections on which a request may still be under way."""
        return {number: each for number, each in self.open.items() if number not in self.replies and each.owed}

    def unsent(self) -> set[int]:
        """The nodes to which the request did not get, or perhaps not."""
        return self._requests.keys() - self.open.keys()

    def close(self, last: Mapping[int, Request], *, all_nodes: bool = False) -> None:
        """Give the connections back. ``last`` goes out on them, behind the request of this round. It is sent on a new
        connection to nodes whose connection is lost; with ``all_nodes`` to those that were not asked, too."""
        for number, connection in self.open.items():
            self._nodes[number].leave(connection, last.get(number))
        for number in last.keys() - self.open.keys():
            if all_nodes or number in self._sent:
                self._nodes[number].take_back([last[number]])
        self.open.clear()
        self._sent.clear()
        self._turn.release()

    def error(self) -> BackendUnavailable:
        """Which nodes failed, and which did not answer in time."""
        total = len(self.answers)
        late = [number for number, error in self._errors.items() if _is_late(error)]
        failed = {number: error for number, error in self._errors.items() if not _is_late(error)}
        parts: list[str] = []
        cause: BaseException | None = None
        if late:
            parts.append(f"{len(late)} of {total} Redis nodes did not answer in time: {_numbers(late)}")
            cause = TimeoutError("There was no answer in time.")
        if failed:
            kinds = ", ".join(sorted({kind_of(error) for error in failed.values()}))
            count = str(len(failed)) if late else f"{len(failed)} of {total} Redis nodes"
            parts.append(f"{count} failed: {_numbers(failed)} ({kinds})")
            if not late or len(failed) > total - majority(total):  # these alone are too many
                cause = _root(next(iter(failed.values())))
        text = "; ".join(parts) or f"No majority of the {total} Redis nodes confirms it"
        cluster = next((f". {root}" for root in map(_root, failed.values()) if isinstance(root, ClusterNode)), ".")
        unavailable = BackendUnavailable(text + cluster)
        unavailable.__cause__ = cause
        return unavailable


async def _one_done(attempts: Collection[Outcome[None]], until: float) -> bool:
    """Wait until one of ``attempts`` has ended, or until the monotonic time ``until``. Has one?"""
    parker = Parker()
    for attempt in attempts:
        attempt.add_done_callback(lambda _: parker.wake())
    await parker.park(until - clock.now())
    return any(attempt.done() for attempt in attempts)


def _root(error: Exception) -> BaseException:
    return error.__cause__ or error


def kind_of(error: Exception) -> str:
    """An error for a message: what the server said, or the class; the text of others may hold an address."""
    root = _root(error)
    return str(root) if isinstance(root, ErrorReply) else type(root).__name__


def _is_late(error: Exception) -> bool:
    return type(_root(error)).__name__ == "TimeoutError" or (isinstance(error, ConnectionFailed) and error.silent)


def _numbers(nodes: Iterable[int]) -> str:
    return ", ".join(str(number + 1) for number in sorted(nodes))
