"""One request to each of several nodes, sent to all of them at once, until the answers are enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.backends.redis.connection import PENDING, Connection, ConnectionFailed, ErrorReply
from django_distlock.backends.redis.server import Refused
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.sockets import Bell, any_ready
from django_distlock.exceptions import BackendUnavailable

from .node import ClusterNode, Node
from .quorum import Answer, Verdict, majority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django_distlock.backends.redis.scripts import Request


class Round:
    """``requests``: by the number of the node. ``answers`` and ``replies`` follow.

    The round owns the ``open`` connections until :meth:`close`. ``behind``: connections on which a request is perhaps
    still under way that must be executed before.
    """

    def __init__(
        self, nodes: Sequence[Node], requests: Mapping[int, Request], behind: Mapping[int, Connection] | None = None
    ) -> None:
        self._nodes, self._requests, self._behind = nodes, requests, behind or {}
        self.answers = [Answer.PENDING if number in requests else Answer.FAILED for number in range(len(nodes))]
        self.replies: dict[int, Any] = {}
        self.open: dict[int, Connection] = {}
        self._errors: dict[int, Exception] = {}
        self._connecting: dict[int, int] = {}  # the failures of the node until then
        self._sent: set[int] = set()
        self._bell: Bell | None = None
        self.asked_at = 0.0

    async def run(self, judge: Callable[[Sequence[Answer]], Verdict], patience: float) -> Verdict:
        """Ask, and listen until ``judge`` has a verdict. Without an answer within ``patience`` seconds a node fails; to
        connect may take SILENCE."""
        self.asked_at = clock.now()
        up = sum(not self._nodes[number].down for number in self._requests)
        for number in self._requests:
            node = self._nodes[number]
            connection = node.again(self._behind.get(number))
            if connection is not None:
                self._send(number, connection)
            elif node.down and up >= majority(len(self._nodes)):
                node.retry()
                self._fail(number, node.error)
            else:
                self._connecting[number] = node.failures
        if self._connecting:
            patience = max(patience, SILENCE)
            self._connect()
        end = self.asked_at + patience
        while (verdict := judge(self.answers)) is Verdict.WAIT:
            await self._listen(end)
        return verdict

    def awaits(self, number: int) -> bool:
        """Was the node asked, and may it still answer?"""
        return number in self._sent and self.answers[number] is Answer.PENDING

    def connects(self, number: int) -> bool:
        """Is a connection to the node being opened?"""
        return number in self._connecting and self.answers[number] is Answer.PENDING

    def _send(self, number: int, connection: Connection) -> None:
        self.open[number] = connection
        self._sent.add(number)
        try:
            connection.send_script(self._requests[number])
        except ConnectionFailed as error:
            self._fail(number, error)

    def _connect(self) -> None:
        """Take the connections that there are by now, and have others opened."""
        if self._bell is None:
            self._bell = Bell()
        for number, failures in list(self._connecting.items()):
            node = self._nodes[number]
            node.callers.add(self._ring)  # before the look, or it may miss the call
            connection = node.take()
            if connection is not None:
                del self._connecting[number]
                node.callers.discard(self._ring)
                self._send(number, connection)
            elif node.failures != failures:
                del self._connecting[number]
                self._fail(number, node.error)
            else:
                node.open()

    def _ring(self) -> None:
        """From any thread."""
        bell = self._bell
        if bell is not None:
            bell.ring()

    async def _listen(self, end: float) -> None:
        waiting = {self.open[number].fd: number for number in self._sent if self.awaits(number)}
        fds = [*waiting, *([self._bell.fileno()] if self._bell is not None and self._connecting else [])]
        heard = await any_ready(fds, end)
        for fd in heard:
            if fd in waiting:
                self._hear(waiting[fd])
            elif self._bell is not None:
                self._bell.silence()
                self._connect()
        if not heard and clock.now() >= end:
            for number, answer in enumerate(self.answers):
                if answer is Answer.PENDING:
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
            self._sent.discard(number)  # it did nothing
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

    def close(self, last: Mapping[int, Request], until: float = 0.0, *, all_nodes: bool = False) -> None:
        """Give the connections back. ``last`` goes out on them, behind the request of this round. Until the monotonic
        time ``until`` it is sent on a new connection to nodes whose connection is lost; with ``all_nodes`` to those
        that were not asked, too."""
        for node in self._nodes:
            node.callers.discard(self._ring)
        while self.open:
            number, connection = self.open.popitem()
            self._nodes[number].part(connection, last.get(number), until)
            self._sent.discard(number)
            last = {other: request for other, request in last.items() if other != number}
        for number in sorted(last if all_nodes else last.keys() & self._sent):
            self._nodes[number].tell(last[number], until)
        self._sent.clear()
        self._bell = None

    def error(self) -> BackendUnavailable:
        """Which nodes failed, and which did not answer in time."""
        total = len(self.answers)
        late = [number for number, error in self._errors.items() if _is_late(error)]
        failed = {number: error for number, error in self._errors.items() if not _is_late(error)}
        if not self._errors:
            return BackendUnavailable(f"No majority of the {total} Redis nodes confirms it.")
        kinds = ", ".join(sorted({kind_of(error) for error in failed.values()}))
        failures = f"failed: {_numbers(failed)} ({kinds})" if failed else ""
        if late and len(failed) <= total - majority(total):
            text = f"{len(late)} of {total} Redis nodes did not answer in time: {_numbers(late)}"
            text += f"; {len(failed)} {failures}" if failed else ""
            cause: BaseException = TimeoutError("There was no answer in time.")
        else:  # these alone are too many
            text = f"{len(failed)} of {total} Redis nodes {failures}"
            text += f"; no answer in time: {_numbers(late)}" if late else ""
            cause = _root(next(iter(failed.values())))
        clustered = [str(error) for error in failed.values() if isinstance(error, ClusterNode)]
        unavailable = BackendUnavailable(". ".join([text, *clustered[:1]]).removesuffix(".") + ".")
        unavailable.__cause__ = cause
        return unavailable


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
