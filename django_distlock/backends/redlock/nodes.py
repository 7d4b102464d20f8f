"""The Redis servers of one alias: how each is reached, and what is undone at it later."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.redis.commands import unknown_script
from django_distlock.backends.redis.connection import PENDING, Connection, ConnectionFailed, Places, Pool
from django_distlock.concurrency.abandoned_calls import Background, CallTimeout, NotStarted
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.sockets import READY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_distlock.backends.cleanup import PendingCleanup
    from django_distlock.backends.redis.commands import Script
    from django_distlock.backends.redis.target import Target

    from .scripts import Keys

# The time for one attempt to connect, and the pause after one that failed; seconds.
CONNECT_TIMEOUT, RETRY = 1.0, 0.1
# A node that has not been connected to after this time no longer delays the connections to the others; seconds.
HELD_UP = 0.05
# Requests that one connection carries without a reply. With more, the node counts as hung.
MAX_DUE = 64
# Rounds of one process that run at the same time. Each uses one connection to each node.
ROUNDS = 8


class Undo(NamedTuple):
    """What may be left at a node: a vote, and the place of ``member`` in the queue."""

    keys: Keys
    vote: str
    member: str
    ttl: float


class NodeRequest:
    """A command for one or several nodes.

    ``undo`` removes what it may leave behind. ``repeat``: send it again if its connection is lost. ``final``: send the
    whole script to a node that does not know it, even if the caller does not wait for the reply.
    """

    __slots__ = ("call", "final", "packed", "repeat", "undo")

    def __init__(
        self,
        script: Script | None,
        *call: Any,
        packed: bytes = b"",
        undo: Undo | None = None,
        repeat: bool = False,
        final: bool = False,
    ) -> None:
        self.call = None if script is None else (script, call)
        self.packed = packed if script is None else script.by_hash(*call)
        self.undo, self.repeat, self.final = undo, repeat, final

    def whole(self) -> bytes:
        """The command with the text of its script."""
        assert self.call is not None  # noqa: S101 - only scripts can be unknown to a server
        script, call = self.call
        return script.whole(*call)


class Sent:
    """A request as it was sent to one node, and the reply. ``lost``: the connection ended before the reply came."""

    __slots__ = ("lost", "pipeline", "reply", "request", "until")

    def __init__(self, pipeline: Pipeline, request: NodeRequest, until: float) -> None:
        self.pipeline, self.request, self.until = pipeline, request, until
        self.reply: Any = PENDING
        self.lost = False


class Pipeline:
    """A connection to one node, and the requests on it whose replies are due. Used by one thread or task at a time.

    A node executes the requests of one connection in order. So a request may follow one whose reply has not come yet.
    """

    __slots__ = ("due", "link", "node")

    def __init__(self, node: Node, link: Connection) -> None:
        self.node = node
        self.link: Connection | None = link
        self.due: deque[Sent] = deque()

    def send(self, request: NodeRequest, until: float) -> Sent:
        """Send without waiting. The reply is expected by the monotonic time ``until``."""
        sent = Sent(self, request, until)
        link = self.link
        if link is None:
            self.node.abandon_request(sent)
            return sent
        self.due.append(sent)
        try:
            link.send(request.packed)
        except ConnectionFailed as error:
            if not error.uncertain:  # the node has got nothing of it
                self.due.remove(sent)
                sent.lost = True
            self.node.lose(self, error)
        except BaseException:
            self.node.lose(self, None)
            raise
        return sent

    def hear(self) -> None:
        """Take the replies that have come."""
        try:
            while self.due and self.link is not None and (reply := self.link.take()) is not PENDING:
                sent = self.due.popleft()
                if sent.request.final and unknown_script(reply):
                    self.due.append(sent)
                    self.link.send(sent.request.whole())
                else:
                    sent.reply = reply
        except ConnectionFailed as error:
            self.node.lose(self, error)
        except BaseException:
            self.node.lose(self, None)
            raise

    def send_whole(self, sent: Sent) -> None:
        """Send the script of a request to a node that does not know it."""
        sent.reply = PENDING
        self.due.append(sent)
        try:
            assert self.link is not None  # noqa: S101 - the node has just answered
            self.link.send(sent.request.whole())
        except ConnectionFailed as error:
            self.node.lose(self, error)

    def overdue(self, now: float) -> bool:
        """Is the node silent for longer than it may be?"""
        return bool(self.due) and (self.due[0].until <= now or len(self.due) >= MAX_DUE)

    def called(self, member: bytes, until: float) -> Flow[bool]:
        """Sleep until a message for ``member`` arrives. False at ``until``, or if the connection is lost."""
        while self.due:
            if self.link is None or not (yield Step(READY.poll, READY.apoll, (self.link.fd, False, until))):
                return False
            self.hear()
        while (link := self.link) is not None:
            try:
                push = yield Step(link.listen, link.alisten, (until,))
            except ConnectionFailed as error:
                self.node.lose(self, error)
                return False
            if push is None:
                return False
            # an earlier waiter on this connection may have been called too late
            if push[0] == b"message" and push[2] == member:
                return True
        return False


class Node:
    """One Redis server. ``number`` counts from 1, for messages: an address may hold a password."""

    def __init__(self, number: int, target: Target, undo_later: Callable[[int, Undo], None]) -> None:
        self.number = number
        self.pool = Pool(target)
        self._undo_later = undo_later
        # connections with replies due that no caller waits for
        self._late: deque[Pipeline] = deque()
        self.connecting = 0
        # Did the last attempt to connect fail, or the last connection fall silent? Callers do not wait for such a node.
        self.trouble = False
        self.retry_at = 0.0
        # until when no caller tries to listen, because the node refused it
        self.deaf_until = 0.0
        self.error: BaseException | None = None

    def take(self, prefer: Pipeline | None = None, *, clean: bool = False) -> Pipeline | None:
        """A connection at hand: ``prefer`` if it is free. ``clean``: one without replies due."""
        late = self._late
        if prefer is not None and prefer in late:
            try:
                late.remove(prefer)
            except ValueError:  # taken just now
                pass
            else:
                late.appendleft(prefer)
        if clean:
            self._sort()
        while late and not clean:
            try:
                pipeline = late.popleft()
            except IndexError:
                break
            pipeline.hear()
            if pipeline.overdue(monotonic()):
                self.silence(pipeline)
            if pipeline.link is not None:
                return pipeline
        link = self.pool.take()
        return None if link is None else Pipeline(self, link)

    def put(self, pipeline: Pipeline) -> None:
        """Give a connection back."""
        if pipeline.link is None:
            return
        if pipeline.overdue(monotonic()):
            self.silence(pipeline)
        elif pipeline.due:
            self._late.append(pipeline)
        else:
            self.pool.give(pipeline.link)

    def silence(self, pipeline: Pipeline) -> None:
        """Close a connection on which the node does not answer."""
        self.trouble = True
        self.lose(pipeline, TimeoutError("There was no answer in time."))

    def lose(self, pipeline: Pipeline, error: Exception | None) -> None:
        """Close a connection. Its requests may be executed all the same, and are undone later."""
        link, pipeline.link = pipeline.link, None
        if link is not None:
            self.pool.discard(link)
        if error is not None:
            self.error = error.__cause__ or error
            self.pool.discard_idle()
        while pipeline.due:
            self.abandon_request(pipeline.due.popleft())

    def abandon_request(self, sent: Sent) -> None:
        """A request whose reply cannot come."""
        sent.lost = True
        if sent.request.undo is not None:
            self._undo_later(self.number - 1, sent.request.undo)

    def open(self) -> None:
        """Open a connection, in a thread that may wait."""
        try:
            self.pool.open(CONNECT_TIMEOUT)
            self.trouble, self.error = False, None
        except Exception as error:  # of the socket or of redis-py
            self.error = error
            self.failed()
        finally:
            self.connecting -= 1

    def failed(self) -> None:
        """The attempt to connect has failed."""
        self.trouble, self.retry_at = True, monotonic() + RETRY

    def tick(self, now: float) -> bool:
        """Close what is idle or silent. True if a connection is open."""
        self._sort()
        self.pool.close_idle(now)
        return self.pool.is_open

    def _sort(self) -> None:
        """Take late replies. Connections without any due are at hand again; those that are silent are closed."""
        for _ in range(len(self._late)):
            try:
                pipeline = self._late.popleft()
            except IndexError:
                return
            pipeline.hear()
            self.put(pipeline)

    def close(self) -> None:
        """Close every connection."""
        while self._late:
            pipeline = self._late.pop()
            if pipeline.link is not None:
                self.pool.discard(pipeline.link)
        self.pool.close()


class Nodes:
    """All nodes of an alias. What may be left behind at one of them goes to ``cleanup``."""

    def __init__(
        self,
        alias: str,
        targets: Sequence[Target],
        cleanup: PendingCleanup[tuple[int, Undo]],
        wake_at: Callable[[float], None],
    ) -> None:
        self.all = [Node(number, target, self.undo_later) for number, target in enumerate(targets, 1)]
        self.places = Places(ROUNDS)
        self._connecting = Background(f"distlock-{alias}-connect", len(targets) * ROUNDS)
        self._cleanup = cleanup
        self._wake_at = wake_at

    def healthy(self, first: int) -> list[int]:
        """The nodes without trouble, or all if there is none, from ``first`` on."""
        order = [(first + step) % len(self.all) for step in range(len(self.all))]
        return [index for index in order if not self.all[index].trouble] or order

    def open(self, nodes: Sequence[Node], until: float) -> Flow[None]:
        """Open a connection to each of ``nodes``, until the monotonic time ``until``.

        One thread connects to one after the other. Another one takes over those behind a node that does not answer.
        """
        left = deque(nodes)
        for node in left:
            node.connecting += 1
        while left and monotonic() < until:
            try:
                yield from self._connecting.call(min(until, monotonic() + HELD_UP), _open, left)
            except CallTimeout:
                for node in nodes:
                    node.trouble = node.trouble or (node.connecting > 0 and node not in left)
            except NotStarted as error:
                _give_up(left, error)

    def open_aside(self, node: Node) -> None:
        """Try to connect to a node in trouble, without waiting for it."""
        if node.connecting or monotonic() < node.retry_at:
            return
        node.connecting += 1
        left = deque([node])
        try:
            self._connecting.start(_open, left).abandon()
        except NotStarted as error:
            _give_up(left, error)

    def undo_later(self, index: int, undo: Undo, *, uncertain: bool = True) -> None:
        """Undo a request at a node behind the back of its caller. ``uncertain``: it may be executed later."""
        self._cleanup.add(_token(index, undo.vote, undo.member), (index, undo), undo.ttl, uncertain)
        self._wake_at(monotonic())

    def undoing(self, index: int, vote: str) -> bool:
        """Is this vote being taken back at the node ``index``?"""
        return _token(index, vote, "") in self._cleanup.requests

    def tick(self, now: float) -> bool:
        """Look after the connections. True if one is open."""
        open_ = [node.tick(now) for node in self.all]
        return any(open_)

    def close(self) -> None:
        """Close every connection; the next request opens others."""
        for node in self.all:
            node.close()

    def abandon(self) -> None:
        """In the child of a fork: leave the connections to the parent."""
        for node in self.all:
            node.pool.abandon()


def _token(index: int, vote: str, member: str) -> str:
    return f"{index} {vote}{member}"


def _open(left: deque[Node]) -> None:
    while True:
        try:
            node = left.popleft()
        except IndexError:
            return
        node.open()


def _give_up(left: deque[Node], error: Exception) -> None:
    while left:
        node = left.popleft()
        node.connecting -= 1
        node.error = error
        node.failed()
