"""One attempt to acquire a lock: ask, wait for the hand-over, ask again if a message may be missing, and leave."""

from __future__ import annotations

import os
import socket
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step
from django_distlock.concurrency.origin import describe_caller
from django_distlock.records import Claim, Grant, drift

from .commands import (
    ACQUIRE,
    LEAVE,
    LOST_CONNECTIONS,
    REPLY,
    Demoted,
    Refused,
    converse,
    holder_of,
    keys_of,
    milliseconds,
)
from .connection import Connection, ConnectionFailed

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.keys import LockKey

    from .connection import Push
    from .pool import Pool

# The first waiter asks again when the lease of the holder ends, each one after it this much later than the one before,
# LATEST at most. Seconds.
LATER, LATEST = 0.25, 1.0
LEAST_WAIT = 0.01
# The time that a waiter has to leave the queue after its timeout; else it is undone later. Seconds.
LEAVE_TIMEOUT = 0.02
# A caller that does not wait still gives the server this long to answer; seconds.
LEAST_PATIENCE = 0.5
# The largest limit of a semaphore: Lua prints it in full.
MAX_LIMIT = 2**31


class HolderInfo:
    """Describes the holders of this process to operators: JSON with the host, the process, the thread and the name."""

    def __init__(self) -> None:
        host = encode_basestring_ascii(socket.gethostname())
        self._process = f'"host": {host}, "pid": {os.getpid()}'

    def facts(self, key: LockKey) -> bytes:
        """The JSON of a holder of ``key`` in the thread or task that calls."""
        name, thread = encode_basestring_ascii(key.name), encode_basestring_ascii(describe_caller())
        return f'{{"name": {name}, {self._process}, "thread": {thread}}}'.encode("ascii")


class RedisAttempt:
    """An attempt of one claim. ``sent``: the server may know the claim; then a caller that gives up calls
    :meth:`leave`, or has the claim undone later. ``echo``: a request whose reply was lost may still be executed."""

    __slots__ = (
        "_asked",
        "_claim",
        "_connection",
        "_deadline",
        "_info",
        "_keys",
        "_pool",
        "_server",
        "_who",
        "echo",
        "sent",
    )

    def __init__(self, pool: Pool, claim: Claim, info: bytes, deadline: float) -> None:
        self._pool = pool
        self._claim = claim
        self._info = info
        self._who = holder_of(claim)
        self._keys = keys_of(claim.key)
        self._deadline = deadline
        self._connection: Connection | None = None
        self._asked = 0.0  # monotonic, before the request was sent
        self._server = 0  # the server's clock when it answered, µs
        self.sent = self.echo = False

    def ask(self, queue: bool) -> Flow[tuple[Grant | None, float]]:
        """Return the grant, or None and the monotonic time at which to ask again. ``queue``: join the queue if busy."""
        claim, lost = self._claim, 0
        args = (self._who, min(claim.limit, MAX_LIMIT), milliseconds(claim.ttl))
        answer_by = max(claim.answer_by, self._pool.ready_at + LEAST_PATIENCE, monotonic() + LEAVE_TIMEOUT)
        while True:
            try:
                connection = self._connection = (
                    self._connection or self._pool.take() or (yield from self._pool.get(answer_by))
                )
                self._asked = monotonic()
                self.sent = True
                if queue and not connection.subscribed:
                    connection.subscribe()
                waiting = (connection.channel if queue else b"", self._info)
                until = min(answer_by, self._asked + REPLY)
                reply = yield from converse(connection, ACQUIRE, self._keys, (*args, *waiting), until)
            except Refused:
                self.give_back()
                raise
            except ConnectionFailed as error:
                unreachable = self._connection is None
                self.drop()
                self.echo = self.echo or error.uncertain
                if isinstance(error, Demoted):
                    self._pool.discard_idle()
                lost += not error.timed_out
                if unreachable or lost > LOST_CONNECTIONS or monotonic() >= answer_by:
                    error.uncertain = self.sent
                    raise
                continue
            self.sent = queue or reply[0] > 0
            return self._answered(reply)

    def _answered(self, reply: list[int]) -> tuple[Grant | None, float]:
        fence, self._server = reply[0], reply[1]
        if fence:
            self.give_back()
            return self._grant(fence, self._asked, 0.0), 0.0
        taken, place = reply[2], reply[3]
        wait = max(taken / 1000, LEAST_WAIT) + min(place * LATER, LATEST)
        return None, monotonic() + wait

    def _grant(self, fence: int, start: float, waited: float) -> Grant:
        ttl = self._claim.ttl or 0.0
        valid_until = start + ttl - drift(ttl) - waited * 0.01
        return Grant(claim=self._claim, fence=fence, acquired_at=start, valid_until=valid_until)

    def hear(self, until: float) -> Flow[Grant | None]:
        """Wait until the lock is handed over. Returns None if the caller must ask again, or at the deadline.

        A message is accepted only if it is certainly a grant to this claim; in doubt the caller asks again.
        """
        connection = self._connection
        if connection is None:
            return None
        try:
            while True:
                push: Push | None = yield Step(connection.listen, connection.alisten, (min(until, self._deadline),))
                if push is None:
                    return None
                if (message := self._addressed(push)) is None:
                    continue
                grant = self._handed(*message)
                if grant is None or self._worn(grant):
                    return None
                self.give_back()
                return grant
        except ConnectionFailed:
            self.drop()
            return None

    def _addressed(self, push: Push) -> tuple[int, int] | None:
        """The fence and the server's clock (µs) of a message to this waiter; None if it is for another."""
        if push[0] != b"message":
            return None
        who, _, rest = push[2].partition(b" ")
        try:
            fence, clock = map(int, rest.split())
        except ValueError:  # not from our scripts
            return None
        return (fence, clock) if who == self._who else None

    def _handed(self, fence: int, clock: int) -> Grant | None:
        """The grant of a hand-over; None if the message is none, or belongs to an earlier grant.

        The lease began when the lock was handed over. The server dates that by the clock that it sent in its reply to
        the request, so it was not before ``_asked`` plus the difference of the two, and a process that sleeps over the
        message knows it. A message from before that reply says nothing of the time after it.
        """
        if not fence or clock < self._server:
            return None
        waited = (clock - self._server) / 1e6
        return self._grant(fence, min(self._asked + waited, monotonic()), waited)

    def _worn(self, grant: Grant) -> bool:
        """Has the allowance for the drift of the clocks during a long wait become larger than that for the lease? Then
        it is better to ask again: the lease is granted already."""
        ttl = self._claim.ttl or 0.0
        return (grant.valid_until or 0.0) < grant.acquired_at + ttl - 2 * drift(ttl)

    def leave(self, until: float) -> Flow[None]:
        """Leave the queue and release the lock. ConnectionFailed without an answer by the monotonic time ``until``.

        The server executes the commands of one connection in order, so a request whose reply has not arrived yet is
        undone as well.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionFailed("The connection was lost.", uncertain=True)
        while connection.owed:
            yield Step(connection.receive, connection.areceive, (until,))
        yield from converse(connection, LEAVE, self._keys, (self._who,), until)
        self.sent = False
        self.give_back()

    @property
    def connected(self) -> bool:
        """Does the attempt still have the connection on which it asked?"""
        return self._connection is not None

    def give_back(self) -> None:
        """Return the connection to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection)

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.discard(connection)
