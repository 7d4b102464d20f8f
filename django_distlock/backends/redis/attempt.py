"""An attempt to acquire: ask; if the lock is busy, queue and listen; ask again when a message may be missing; leave."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django_distlock.backends.holders import holder_json
from django_distlock.concurrency import clock, leftovers
from django_distlock.records import Claim, Grant, drift

from .connection import ConnectionFailed
from .scripts import ACQUIRE, LEAVE, MAX_LIMIT, Request, holder_of, keys_of, milliseconds

if TYPE_CHECKING:
    from .listener import Ear, Inbox, Message
    from .server import Server
    from .servers import Servers

# A waiter asks again when the lease of the holder ends, each one this much later than the one before, and at the
# latest after this time: a message may be lost. Seconds.
LATER, LOOK_EVERY = 0.25, 5.0


class Attempt:
    """The requests for one claim at the server that has its keys."""

    def __init__(self, servers: Servers, claim: Claim) -> None:
        self._servers, self._claim = servers, claim
        self._keys, self._who = keys_of(claim.key.text_bytes), holder_of(claim)
        self._ttl = claim.ttl or 0.0
        self._about = min(claim.limit, MAX_LIMIT), milliseconds(claim.ttl), holder_json(claim.key)
        self._number = 0  # of the name
        # who was asked, and which channel was named
        self._server: Server
        self._channel = b""
        self._ear: Ear | None = None
        self._inbox: Inbox | None = None
        # when it was sent, and by the clock of the server (µs) when that answered
        self._asked, self._clock = 0.0, 0
        self._unheard = 0
        self._look_at = 0.0

    def leave(self) -> Request:
        """What ends whatever it is at the server: waiter or holder."""
        return Request(LEAVE, self._keys, self._who)

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
                if grant is None and waits and self._ear is not None and self._inbox is not None:
                    grant = self._heard(await self._ear.get(self._inbox, min(self._look_at, deadline)))
                if grant is not None or not waits or clock.now() >= deadline:
                    return grant
        finally:
            if self._ear is not None:
                leftovers.now_or_later(self._close_inbox, grant is None)

    def _close_inbox(self, leaves: bool) -> None:
        ear, self._ear, self._inbox = self._ear, None, None
        if ear is not None:
            ear.inboxes.pop(self._who, None)
            if leaves:
                ear.send(self.leave())

    def _rename(self) -> None:
        """The withdrawal of the old name may still be on its way: it must not meet a new request."""
        self._close_inbox(True)
        self._number += 1
        self._who = holder_of(self._claim, self._number)

    def _listen(self, ear: Ear) -> None:
        """Before the request that names the channel: the message may be faster than the reply."""
        if self._ear is not ear:
            if self._ear is not None:
                self._ear.inboxes.pop(self._who, None)
            self._ear, self._inbox = ear, ear.inbox(self._who)

    async def _ask(self, deadline: float, queue: bool) -> Grant | None:
        """Ask once."""
        reply, _ = await self._servers.call(self._keys, partial(self._acquire, queue), deadline, self.leave)
        if reply[0]:
            return self._granted(self._asked, reply[0])
        _, self._clock, taken, ahead, heard = reply
        self._look_at = self._asked + min(taken / 1000 + ahead * LATER, LOOK_EVERY)
        if queue and not heard:
            try:
                await self._open(deadline)
            except ConnectionFailed as error:
                if not error.silent:  # else the time is over, and the lock is busy
                    raise
        return None

    def _acquire(self, queue: bool, server: Server) -> Request:
        """The request to ``server``. The caller listens there before it is asked to queue."""
        self._server, self._channel = server, b""
        if queue and (ear := server.listener.ear) is not None:
            self._listen(ear)
            self._channel = ear.channel
        self._asked = clock.now()
        return Request(ACQUIRE, self._keys, self._who, *self._about, self._channel)

    async def _open(self, until: float) -> None:
        """Listen where the lock is. If there was an ear, it is at a server that was the primary before."""
        if self._channel and self._ear is not None:
            self._unheard += 1
            self._ear.end()
        self._listen(await self._server.listener.open(until))
        # at once, unless two connections in turn have led to different servers
        self._look_at = self._asked + (0.0 if self._unheard < 2 else LATER)

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
