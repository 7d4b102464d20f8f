"""The Redis servers of one alias: what they store, how each is reached, and what is undone at it later.

A lock is one key with a TTL, ``redlock:{<key>}``. Its value is the *vote*, a space and the facts of the holder in JSON.
A vote is the claim's token with the number of the attempt. What takes back one attempt may be executed late, and never
removes a later one.
Waiters queue at one node: in a sorted set by the time of their arrival, and in a hash with the time at which each was
last seen, the channel on which it listens, and its facts. A script that frees the key there calls the first of them.
The queue only keeps order and saves requests: a majority of all nodes decides who has the lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.redis.scripts import milliseconds
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.places import Places
from django_distlock.concurrency.sockets import ready
from django_distlock.records import MOST_WAITING

from .commands import scripts, unknown_script
from .connection import PENDING, Connection, ConnectionFailed, Pool, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_distlock.backends.cleanup import PendingCleanup
    from django_distlock.backends.redis.target import Target

    from .commands import Script

PREFIX = b"redlock:"
# A waiter that was called, or cannot be called, loses its turn if it does not ask within this time; milliseconds.
GRACE = 500
# The queue is forgotten if no waiter asks within this time; milliseconds. Waiters ask every few seconds.
KEPT = 15_000
# A refusal is -1, less the number of waiters ahead, less this for each millisecond that the key has to live. None: the
# lock is free, but others came first.
PLACES = 1_000_000
# What ACQUIRE does about the queue: give way to those in it, or join it.
RESPECT, JOIN = "0", "1"
# The time for one attempt to connect, and the pause after one that failed; seconds.
CONNECT_TIMEOUT, RETRY = 1.0, 0.1
# A node that has not been connected to after this time no longer delays the connections to the others; seconds.
HELD_UP = 0.05
# Requests that one connection carries without a reply. With more, the node counts as hung.
MAX_DUE = 64
# Rounds of one process that run at the same time. Each uses one connection to each node.
ROUNDS = 8
# The pause between two looks for a connection; seconds.
CONNECT_PAUSE = 0.002

ACQUIRE, RELEASE, EXTEND, DESCRIBE, BREAK = scripts(
    "django_distlock.backends.redlock",
    {"GRACE": GRACE, "KEPT": KEPT, "PLACES": PLACES, "JOIN": JOIN, "MOST_WAITING": MOST_WAITING},
    *("acquire", "release", "extend", "describe", "break"),
)

Keys = tuple[bytes, bytes, bytes]


def keys_of(text: str) -> Keys:
    """The keys of one lock on each node: the lock, its queue, and the facts of the waiters."""
    key = b"%b{%b}" % (PREFIX, text.encode("ascii"))
    return key, key + b":queue", key + b":waiters"


class Undo(NamedTuple):
    """What may be left at a node: a vote, and the place of ``member`` in the queue."""

    keys: Keys
    vote: str
    member: str
    ttl: float


class NodeRequest:
    """A command for one or several nodes.

    ``undo`` removes what it may leave behind. ``repeat``: it may be executed late or twice, so it is sent again if its
    connection is lost.
    """

    def __init__(
        self,
        script: Script | None,
        *call: Any,
        packed: bytes = b"",
        undo: Undo | None = None,
        repeat: bool = False,
    ) -> None:
        self.script, self.call = script, call
        self.packed = packed if script is None else script.by_hash(*call)
        self.undo, self.repeat = undo, repeat


def vote_request(undo: Undo, holder: str) -> NodeRequest:
    """A request for the vote that ``undo`` takes back, at a node without a queue."""
    value = undo.vote + holder
    return NodeRequest(None, packed=pack("SET", undo.keys[0], value, "NX", "PX", milliseconds(undo.ttl)), undo=undo)


def undo_request(undo: Undo) -> NodeRequest:
    """A request that takes back a vote, and takes its owner out of the queue."""
    return NodeRequest(RELEASE, undo.keys, undo.vote, undo.member, undo=undo, repeat=True)


class Sent:
    """A request as it was sent to one node, and the reply. ``lost``: the connection ended before the reply came."""

    def __init__(self, pipeline: Pipeline, request: NodeRequest, until: float) -> None:
        self.pipeline, self.request, self.until = pipeline, request, until
        self.reply: Any = PENDING
        self.lost = False


class Pipeline:
    """A connection to one node, and the requests on it whose replies are due. Used by one thread or task at a time.

    A node executes the requests of one connection in order. So a request may follow one whose reply has not come yet.
    """

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
            if not error.uncertain and not request.repeat:  # the node has got nothing of it
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
                sent = self.due[0]
                request = sent.request
                # a vote must not come after what takes it back
                if request.script is not None and unknown_script(reply) and (request.repeat or len(self.due) == 1):
                    self.due.append(sent)
                    self.link.send(request.script.whole(*request.call))
                else:
                    sent.reply = reply
                    if request.repeat and isinstance(reply, Exception):  # refused for the moment, and so not undone
                        self.node.undo(request)
                self.due.popleft()  # last: an interrupt must not lose it
        except ConnectionFailed as error:
            self.node.lose(self, error)
        except BaseException:
            self.node.lose(self, None)
            raise

    def overdue(self, now: float) -> bool:
        """Is the node silent for longer than it may be? Replies that have come count: the caller may be late itself."""
        if not self._due_by(now):
            return False
        self.hear()
        return self._due_by(now)

    def _due_by(self, now: float) -> bool:
        return bool(self.due) and (self.due[0].until <= now or len(self.due) >= MAX_DUE)

    async def called(self, member: bytes, until: float) -> bool:
        """Sleep until a message for ``member`` arrives. False at ``until``, or if the connection is lost."""
        while self.due:
            if self.link is None or not await ready(self.link.fd, False, until):
                return False
            self.hear()
        while (link := self.link) is not None:
            try:
                push = await link.alisten(until)
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
        # since when (monotonic) a thread connects to it; infinite: none has begun, 0: none will
        self.connecting = 0.0
        # Did the last attempt to connect fail, or the last connection fall silent?
        self._failed = False
        self.retry_at = 0.0
        # until when no caller tries to listen, because the node refused it
        self.deaf_until = 0.0
        self.error: BaseException | None = None

    @property
    def trouble(self) -> bool:
        """Has it failed, or does an attempt to connect take long? Callers do not wait for such a node."""
        began = self.connecting  # read once: the thread that connects changes it
        return self._failed or (began > 0 and clock.now() - began >= HELD_UP)

    def take(self, prefer: Pipeline | None = None, *, clean: bool = False) -> Pipeline | None:
        """A connection at hand: ``prefer`` if it is free, else one without replies due. ``clean``: only such a one.

        One with replies due may be silent, while the node answers on another one.
        """
        late, preferred = self._late, False
        if clean:
            self._sort()
        elif prefer is not None:
            with contextlib.suppress(ValueError):  # it is not late any more
                late.remove(prefer)
                late.appendleft(prefer)
                preferred = True
        if not preferred and (link := self.pool.take()) is not None:
            return Pipeline(self, link)
        while late and not clean:
            try:
                pipeline = late.popleft()
            except IndexError:
                break
            pipeline.hear()
            if pipeline.overdue(clock.now()):
                self.silence(pipeline)
            if pipeline.link is not None:
                return pipeline
        link = self.pool.take() if preferred else None
        return None if link is None else Pipeline(self, link)

    def put(self, pipeline: Pipeline) -> None:
        """Give a connection back."""
        if pipeline.link is None:
            return
        if pipeline.overdue(clock.now()):
            self.silence(pipeline)
        elif pipeline.due:
            self._late.append(pipeline)
        elif pipeline.link is not None:
            self.pool.give(pipeline.link)

    def silence(self, pipeline: Pipeline) -> None:
        """Close a connection on which the node does not answer."""
        self._failed = True
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
        self.undo(sent.request)

    def undo(self, request: NodeRequest) -> None:
        """Undo in the background what a request may have left."""
        if request.undo is not None:
            self._undo_later(self.number - 1, request.undo)

    def open(self) -> None:
        """Open a connection, in a thread that may wait."""
        self.connecting = clock.now()
        try:
            self.pool.open(CONNECT_TIMEOUT)
            self._failed, self.error = False, None
        except Exception as error:  # of the socket or of redis-py
            self.failed(error)
        finally:
            self.connecting = 0.0

    def failed(self, error: Exception) -> None:
        """The attempt to connect has failed."""
        self._failed, self.error, self.retry_at, self.connecting = True, error, clock.now() + RETRY, 0.0

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
        with contextlib.suppress(IndexError):  # another thread may take some
            while True:
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
        self._thread_name = f"distlock-{alias}-connect"
        # nodes to connect to, and when the last thread that does it has begun with one (monotonic)
        self._wanted: deque[Node] = deque()
        self._moved_at = -inf
        self._cleanup = cleanup
        self._wake_at = wake_at

    def healthy(self, first: int) -> list[int]:
        """The nodes without trouble, or all if there is none, from ``first`` on."""
        order = [(first + step) % len(self.all) for step in range(len(self.all))]
        return [index for index in order if not self.all[index].trouble] or order

    def connect(self, nodes: Sequence[Node]) -> bool:
        """Begin to connect to each of ``nodes`` in the background. False if there is nothing to wait for.

        One thread connects to one after the other. If a node does not answer, another thread takes over those behind
        it. So no more threads are stuck than nodes.
        """
        now, begun = clock.now(), False
        for node in nodes:
            if node.connecting:
                begun = True
            elif now >= node.retry_at:
                node.connecting, begun = inf, True  # True also if the thread has connected to it before this returns
                self._wanted.append(node)
        if self._wanted and now - self._moved_at >= HELD_UP:
            self._moved_at = now
            try:
                threading.Thread(target=self._connect, name=self._thread_name, daemon=True).start()
            except RuntimeError as error:  # there is no thread, as at the end of the interpreter
                self._moved_at = -inf
                while self._wanted:
                    self._wanted.popleft().failed(error)
                return any(node.connecting for node in nodes)
        return begun

    def _connect(self) -> None:
        while self._wanted:
            try:
                node = self._wanted.popleft()
            except IndexError:
                break
            self._moved_at = clock.now()
            node.open()
        self._moved_at = -inf

    async def connected(self, node: Node, until: float) -> Pipeline | None:
        """A connection without replies due, None if there is none by the monotonic time ``until``."""
        while (pipeline := node.take(clean=True)) is None:
            if not self.connect([node]) or clock.now() >= until:
                return None
            await pause(CONNECT_PAUSE)
        return pipeline

    def undo_later(self, index: int, undo: Undo, *, uncertain: bool = True) -> None:
        """Undo a request at a node behind the back of its caller. ``uncertain``: it may be executed later."""
        self._cleanup.add(_token(index, undo.vote, undo.member), (index, undo), undo.ttl, uncertain, lane=index)
        self._wake_at(clock.now())

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
