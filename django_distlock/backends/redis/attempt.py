"""An attempt to acquire: ask; if the lock is busy, queue and listen; ask again when a message may be missing; leave."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django_distlock.backends.holders import holder_json
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import pause
from django_distlock.records import Claim, Grant, drift

from .connection import ConnectionFailed
from .listener import ASK_AGAIN
from .scripts import ACQUIRE, LEAVE, MAX_LIMIT, Request, holder_of, keys_of, milliseconds

if TYPE_CHECKING:
    from .listener import Ear, Inbox, Message
    from .scripts import Keys
    from .server import Server
    from .servers import Servers

# A waiter asks again when the lease of the holder ends, each one this much later than the one before, and at the
# latest after this time: a message may be lost. Seconds.
LATER, LOOK_EVERY = 0.25, 5.0


class Place:
    """A waiter in the queue of a lock at one server. ``who``: its name there, which is not used again afterwards."""

    def __init__(self, keys: Keys, who: bytes, ttl: float) -> None:
        self._keys, self.who, self._ttl = keys, who, ttl
        self._ear: Ear | None = None
        self._inbox: Inbox | None = None
        self._unheard = 0  # ears that were at another server than the connections

    def leave(self) -> Request:
        """What ends whatever it is at the server: waiter or holder."""
        return Request(LEAVE, self._keys, self.who, until=clock.now() + self._ttl)

    def listen(self, server: Server) -> bytes:
        """The channel for the next request; empty if there is no ear. The inbox is there before the request: the
        message may be faster than the reply."""
        ear = server.listener.ear
        if self._ear is not ear:
            if self._ear is not None:
                self._ear.inboxes.pop(self.who, None)
            self._ear, self._inbox = ear, None if ear is None else ear.inbox(self.who)
        return b"" if ear is None else ear.channel

    async def open(self, server: Server, until: float) -> float:
        """Listen where the lock is. ConnectionFailed, or in how many seconds to ask again: at once, unless two
        connections in turn have led to different servers."""
        if self._ear is not None:  # the one that was the primary before
            self._unheard += 1
            self._ear.end()
        await server.listener.open(until)
        return 0.0 if self._unheard < 2 else LATER

    async def message(self, until: float) -> Message:
        """The next message; ASK_AGAIN at the monotonic time ``until``, or if the ear has ended."""
        if self._ear is not None and self._inbox is not None:
            return await self._ear.get(self._inbox, until)
        await pause(max(0.0, until - clock.now()))
        return ASK_AGAIN

    def close(self, leaves: bool) -> None:
        """Hear no more, and with ``leaves`` tell the server."""
        ear, self._ear, self._inbox = self._ear, None, None
        if ear is not None:
            ear.inboxes.pop(self.who, None)
            if leaves:
                ear.send(self.leave())  # it may have been handed the lock


class Attempt:
    """The requests for one claim at the server that has its keys."""

    def __init__(self, servers: Servers, claim: Claim) -> None:
        self._servers, self._claim = servers, claim
        self._keys = keys_of(claim.key.text_bytes)
        self._ttl = claim.ttl or 0.0
        self._about = min(claim.limit, MAX_LIMIT), milliseconds(claim.ttl), holder_json(claim.key)
        self._number = 0  # of the name
        self.place = Place(self._keys, holder_of(claim), self._ttl)
        self._server: Server  # which was asked
        # when it was sent, and by the clock of the server (µs) when that answered
        self._asked, self._clock = 0.0, 0
        self._look_at = 0.0

    async def run(self, deadline: float, waits: bool) -> Grant | None:
        """The grant, or None: busy until the monotonic time ``deadline``. Nothing stays behind."""
        grant: Grant | None = None
        try:
            while True:
                try:
                    grant = await self._ask(deadline, waits)
                except ConnectionFailed as error:
                    if not error.silent or clock.now() >= deadline:
                        raise
                    self._rename()
                    continue
                if grant is None and waits:
                    grant = self._heard(await self.place.message(min(self._look_at, deadline)))
                if grant is not None or not waits or clock.now() >= deadline:
                    return grant
        finally:
            leftovers.now_or_later(self.place.close, grant is None)

    def _rename(self) -> None:
        """The withdrawal of the old name may still be on its way: it must not meet a new request."""
        self.place.close(True)
        self._number += 1
        self.place = Place(self._keys, holder_of(self._claim, self._number), self._ttl)

    async def _ask(self, deadline: float, queue: bool) -> Grant | None:
        """Ask once."""
        reply, _ = await self._servers.call(self._keys, partial(self._acquire, queue), deadline, self.place.leave)
        if reply[0]:
            return self._granted(self._asked, reply[0])
        _, self._clock, taken, ahead, heard = reply
        self._look_at = self._asked + min(taken / 1000 + ahead * LATER, LOOK_EVERY)
        if queue and not heard:
            try:
                self._look_at = self._asked + await self.place.open(self._server, deadline)
            except ConnectionFailed as error:
                if not error.silent:  # else the time is over, and the lock is busy
                    raise
        return None

    def _acquire(self, queue: bool, server: Server) -> Request:
        """The request to ``server``. The caller listens there before it is asked to queue."""
        self._server = server
        channel = self.place.listen(server) if queue else b""
        self._asked = clock.now()
        return Request(ACQUIRE, self._keys, self.place.who, *self._about, channel)

    def _granted(self, start: float, fence: int, waited: float = 0.0) -> Grant:
        valid_until = start + self._ttl - drift(self._ttl) - waited * 0.01
        return Grant(self._claim, start, fence, valid_until, self._number)

    def _heard(self, message: Message) -> Grant | None:
        """The grant of a hand-over; None if the caller must ask again, because the message is none or an earlier one.

        The lease began when the lock was handed over. The server dates that by the clock that it sent in its reply, so
        it was not before the request plus the difference of the two, and a process that sleeps over the message knows
        it.
        """
        waited = (message.clock - self._clock) / 1e6
        if not message.fence or waited < 0 or waited * 0.01 > drift(self._ttl):  # the clocks may have drifted apart
            return None
        return self._granted(min(self._asked + waited, clock.now()), message.fence, waited)
