"""The ear of this process at one Redis server: one subscription for all callers that wait there.

It needs no thread. One of the threads that wait reads the connection for all of them, and when it leaves it calls the
next one; an event loop in which tasks wait reads it as well. Messages are put into the inbox of the waiter that they
name.

A channel belongs to one connection. The server asks itself whether somebody listens there, so waiters of a connection
that is lost are passed over, and so are those that moved to another server with it: a message that a replica repeats
reaches nobody. A waiter that leaves says so on the same connection, or on another one if that is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.base import IDLE
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import CallTimeout, SharedCall
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.sockets import Bell, keep_alive, noticed

from .connection import PENDING, ConnectionFailed, ErrorReply, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .scripts import Request

    TakeBack = Callable[[Iterable[Request]], None]

READER, LEADER = "reader", "leader"


class Message(NamedTuple):
    """A hand-over: the fencing token and the server's clock in µs. Fence 0: ask again."""

    fence: int
    clock: int


ASK_AGAIN = Message(0, 0)


class Inbox:
    """The messages for one waiter."""

    __slots__ = ("messages", "parker")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.parker: Parker | None = None

    def put(self, message: Message) -> None:
        self.messages.append(message)
        if self.parker is not None:
            self.parker.wake()


class Ear(Wire):
    """One subscription, with RESP3. ``channel`` is its own; a message on it is "waiter fence clock".

    Nothing here waits for a mutex: what is only one thread's at a time is an item of a dict, and ``setdefault`` tells
    who has it.
    """

    def __init__(self, driver: Any, take_back: TakeBack) -> None:
        super().__init__(driver)
        self._take_back = take_back
        self.channel = b"distlock:" + uuid.uuid4().hex.encode()
        self.ended = False
        self.inboxes: dict[bytes, Inbox] = {}
        self._outbox: deque[Request] = deque()
        self._unconfirmed: deque[Request] = deque()  # requests that the server has perhaps not got
        self._roles: dict[str, object] = {}  # who reads, and which inbox's thread leads
        self._followers: dict[Inbox, Parker] = {}
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}
        self._bell, self._rung = Bell(), False  # for the leader, when another reader has got its message
        self._watch.register(self._bell, select.POLLIN)
        keep_alive(self.fd)  # it is silent for long, and must notice when the network has forgotten its connection

    def subscribe(self, until: float) -> None:
        """Have the server confirm that it listens, by the monotonic time ``until``. In a thread that may wait."""
        self.write(b"*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%b\r\n" % (len(self.channel), self.channel))
        while (reply := self.next()) is PENDING:
            if not noticed(self._watch, until - clock.now()):
                raise ConnectionFailed("Redis did not confirm the subscription in time.", silent=True)
        if type(reply) is ErrorReply:
            raise ConnectionFailed(f"Redis does not let us listen: {reply}") from reply

    def inbox(self, who: bytes) -> Inbox:
        """The inbox of a waiter, to be removed from ``inboxes`` by the caller."""
        return self.inboxes.setdefault(who, Inbox())

    def send(self, request: Request) -> None:
        """Send the request of a waiter that leaves. Never waits."""
        self._outbox.append(request)
        self.work()

    def work(self, mine: Inbox | None = None) -> None:
        """Send and read what there is. Never waits: if another thread does so now, it does what comes meanwhile.
        ``mine``: the inbox of the caller, if it is the leader."""
        while not self.ended:
            me = object()
            try:
                if self._roles.setdefault(READER, me) is not me:
                    return
                while self._outbox:
                    request = self._outbox.popleft()
                    self._unconfirmed.append(request)
                    self.write(self.last(request))
                while (value := self.next()) is not PENDING:
                    self._hear(value, mine)
            except ConnectionFailed:
                self.end()
            finally:
                if self._roles.get(READER) is me:
                    del self._roles[READER]
            if not (self._outbox or self.ended):
                return
        self._hand_over()

    def _hand_over(self) -> None:
        """Have sent on another connection what has perhaps not arrived."""
        for requests in (self._outbox, self._unconfirmed):
            while requests:
                with contextlib.suppress(IndexError):  # another thread does the same
                    self._take_back([requests.popleft()])

    def _hear(self, value: Any, mine: Inbox | None) -> None:
        match value:
            case [b"message", _, bytes() as text]:
                who, _, rest = text.partition(b" ")
            case int() | ErrorReply():  # the reply to the oldest request
                with contextlib.suppress(IndexError):  # end() was faster
                    request = self._unconfirmed.popleft()
                    if type(value) is ErrorReply:
                        self._take_back([request])
                return
            case _:
                return
        inbox = self.inboxes.get(who)
        if inbox is None:  # it has left
            return
        with contextlib.suppress(ValueError, TypeError):  # not from our scripts
            inbox.put(Message(*map(int, rest.split())))
        if (
            inbox is not mine and self._roles.get(LEADER) is inbox
        ):  # it polls the connection, where there is nothing now
            self._bell.ring()
            self._rung = True

    async def get(self, inbox: Inbox, until: float) -> Message:
        """The next message; ASK_AGAIN at the monotonic time ``until``, or if the connection is lost."""
        await (self._sleep(inbox, until) if in_task() else self._lead_or_follow(inbox, until))
        return inbox.messages.popleft() if inbox.messages else ASK_AGAIN

    async def _lead_or_follow(self, inbox: Inbox, until: float) -> None:
        """In a thread: read for all, or sleep while another thread does."""
        try:
            while not (inbox.messages or self.ended):
                if self._roles.setdefault(LEADER, inbox) is inbox:
                    # once more: who reads now rings the bell only for the leader
                    if not (inbox.messages or self.ended) and not noticed(self._watch, until - clock.now()):
                        break
                    if self._rung:
                        self._rung = False
                        self._bell.silence()
                    self.work(inbox)
                elif not await self._follow(inbox, until):
                    break
        finally:
            if self._roles.get(LEADER) is inbox:
                del self._roles[LEADER]
                if self.ended:
                    self._close()
            self._call_follower()

    async def _follow(self, inbox: Inbox, until: float) -> bool:
        """Sleep until there is a message or the leader has left. False at the monotonic time ``until``."""
        inbox.parker = parker = Parker()
        self._followers[inbox] = parker
        try:
            # the leader may have left in between
            return bool(inbox.messages) or LEADER not in self._roles or await parker.park(until - clock.now())
        finally:
            inbox.parker = None
            self._followers.pop(inbox, None)

    def _call_follower(self) -> None:
        """Wake a thread that waits, if none leads."""
        while self._followers and LEADER not in self._roles:
            try:
                _, parker = self._followers.popitem()
            except KeyError:
                return
            if parker.wake():
                return

    async def _sleep(self, inbox: Inbox, until: float) -> None:
        """In a task: sleep while the event loop reads."""
        inbox.parker = parker = Parker()
        try:
            if self._watched(asyncio.get_running_loop()) and not inbox.messages:
                await parker.park(until - clock.now())
        finally:
            inbox.parker = None

    def _watched(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the event loop read the connection until it ends. False if it has ended.

        The loop gets a descriptor of its own: a number that is closed elsewhere may be another file's soon.
        """
        if loop not in self._loops and not self.ended:
            self._forget_closed_loops()
            with contextlib.suppress(OSError):  # it has just been closed
                self._loops[loop] = fd = os.dup(self.fd)
                loop.add_reader(fd, self._look, loop)
        return not self.ended

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.work()
        if self.ended and (fd := self._loops.pop(loop, None)) is not None:
            loop.remove_reader(fd)
            os.close(fd)

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
            if (fd := self._loops.pop(loop, None)) is not None:
                os.close(fd)

    def end(self) -> None:
        """From any thread: the connection is lost, or no longer wanted. Its waiters ask again, on another one."""
        if self.ended:
            return
        self.ended = True
        self.cut()  # wakes the leader, and each event loop
        if LEADER not in self._roles:
            self._close()
        for inbox in list(self.inboxes.values()):
            inbox.put(ASK_AGAIN)
        self._hand_over()

    def _close(self) -> None:
        self._forget_closed_loops()
        self.close()

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        self.ended = True
        while self._loops:
            os.close(self._loops.popitem()[1])
        self.close()


class Listener:
    """The present :class:`Ear` of this process at a server, if there is one."""

    def __init__(
        self, connect: Callable[[], Any], name: str, opened: Callable[[], object], take_back: TakeBack
    ) -> None:
        self._connect, self._take_back = connect, take_back
        self._opened = opened
        self._opening = SharedCall(name, self._open)
        self._ear: Ear | None = None
        self._used_at = 0.0

    @property
    def ear(self) -> Ear | None:
        """The one that hears, or None. It is in use from now on."""
        ear = self._ear
        if ear is None or ear.ended:
            return None
        self._used_at = clock.now()
        return ear

    async def open(self, until: float) -> Ear:
        """An ear that hears. ConnectionFailed at the monotonic time ``until``."""
        try:
            return self.ear or await self._opening.result(until)
        except CallTimeout:
            raise ConnectionFailed("Redis did not confirm the subscription in time.", silent=True) from None
        except ConnectionFailed:
            raise
        except Exception as error:  # of the socket or of redis-py
            raise ConnectionFailed(f"Redis cannot be reached: {error}") from error

    def _open(self) -> Ear:
        """In a thread of its own, for all who wait."""
        ear = self.ear
        if ear is None:
            ear = Ear(self._connect(), self._take_back)
            try:
                ear.subscribe(clock.now() + IDLE)
            except BaseException:
                ear.close()
                raise
            self._ear, self._used_at = ear, clock.now()
            self._opened()
        return ear

    def rest(self, now: float) -> bool:
        """Close the ear if nobody has waited for a while. False if there is none."""
        ear = self._ear
        if ear is not None:
            ear.work()  # perhaps nobody reads it any more
            if ear.inboxes and not ear.ended:
                self._used_at = now
            elif ear.ended or now - self._used_at > IDLE:
                self.close()
        return self._ear is not None

    def close(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.end()

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        if self._ear is not None:
            self._ear.abandon()
