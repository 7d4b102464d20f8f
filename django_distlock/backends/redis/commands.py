"""The Lua scripts of a lock, and the callers that have the server run them.

Each operation is one script, and therefore atomic. ``scripts/keys.lua`` describes the four keys of a lock. They share
one hash slot (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).

A waiter listens on a channel of its connection. PUBSUB NUMSUB tells whether it is connected to *this* server, so a
waiter whose process or connection is gone is skipped at once, without a heartbeat. The message of a hand-over is
published only by the script that has made the grant. The reply of PUBLISH is not used: Redis forwards a message to its
replicas and over the bus of a cluster, and counts patterns too. So a waiter that is connected elsewhere is handed
nothing, and receives no message that it could mistake for a grant.

All times are the server's. Scripts replicate their effects, so they may read the clock; SET with GET and PX needs Redis
6.2. Each script begins with the code that most calls need, before it defines the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import socket
from functools import lru_cache
from importlib.resources import files
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import finished
from django_distlock.concurrency.origin import describe_caller
from django_distlock.records import Claim, Grant, drift

from .connection import Connection, ConnectionFailed, pack, pack_words, reply_code
from .target import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.resources.abc import Traversable

    from django_distlock.keys import LockKey

    from .connection import Pool, Push

PREFIX: Final = b"distlock:{"
HELD: Final = b"}:held"
# How long the fencing token of a lock without a holder is kept, and the tickets of a queue that no waiter reads; ms.
# The clock alone keeps the fence rising afterwards.
KEPT: Final = 86_400_000
# If a waiter would check its lock later than this after the end of the lease ahead, it gets a message; ms.
LATE: Final = 1000
# At most this many waiters get the message, in the order of the queue.
WARNED: Final = 8
# A request that has no reply after this time is sent again on another connection; seconds.
REPLY = 0.5
# The time that a release or a listing may take; seconds.
PATIENCE = 2.0
# A call may lose this many connections: idle ones may be dead. The limit is for a server that closes every connection.
LOST_CONNECTIONS = 2
# What a node of a Redis Cluster replies for the names of other nodes, or for all while it cannot tell.
MOVED = {"MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"}
# A task that is cancelled while a reply is on its way waits for it this long; seconds.
LAST_REPLY = 0.5
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


class Script:
    """A Lua script. It is sent by its hash, and as a whole to a server that answers NOSCRIPT: it was restarted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVALSHA, packed."""
        return _head(self.sha, keys, len(args)) + pack_words(*args)

    def whole(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVAL, packed; the server keeps the script."""
        return pack("EVAL", self.text, len(keys), *keys, *args)


@lru_cache(256)
def _head(sha: str, keys: tuple[bytes, ...], args: int) -> bytes:
    """What every EVALSHA of one script for one lock begins with."""
    return b"*%d\r\n" % (3 + len(keys) + args) + pack_words("EVALSHA", sha, len(keys), *keys)


def unknown_script(reply: object) -> bool:
    """Does the server not know the script of :meth:`Script.by_hash`? Then nothing was done."""
    return reply_code(reply) == "NOSCRIPT"


def _text(folder: Traversable, name: str) -> str:
    """A file with the files that it includes, without the lines that are comments."""
    text = (folder / name).read_text("utf-8")
    text = re.sub(r"^-- include (.+)\n", lambda match: _text(folder, match[1]), text, flags=re.MULTILINE)
    return re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)


def scripts(package: str, constants: Mapping[str, object], *names: str) -> Iterator[Script]:
    """The scripts of a package, from the files in its folder ``scripts``. Each word in ``constants`` stands for its
    value."""
    folder = files(package) / "scripts"
    words = re.compile(rf"\b({'|'.join(constants)})\b")
    for name in names:
        yield Script(words.sub(lambda match: str(constants[match[1]]), _text(folder, f"{name}.lua")))


ACQUIRE, RELEASE, LEAVE, EXTEND, HOLDS, BREAK, LOOK = scripts(
    "django_distlock.backends.redis",
    {"KEPT": KEPT, "LATE": LATE, "WARNED": WARNED},
    *("acquire", "release", "leave", "extend", "holds", "break", "look"),
)


def keys_of(key: LockKey) -> tuple[bytes, ...]:
    """The keys of one lock, in the order in which the scripts expect them."""
    return keys_named(key.text_bytes)


@lru_cache(256)
def keys_named(text: bytes) -> tuple[bytes, ...]:
    """:func:`keys_of` for a key as the listing shows it."""
    start = PREFIX + text
    return (start + HELD, start + b"}:queue", start + b"}:waiters", start + b"}:fence")


class Refused(ConnectionFailed):
    """The server answered with an error: it did nothing."""


class Demoted(ConnectionFailed):
    """The server has become a replica: it did nothing, and another one is to be asked."""


def holder_of(claim: Claim) -> bytes:
    """What the scripts call the holder or waiter of ``claim``."""
    mode = b"s" if claim.shared else b"n" if claim.limit else b"x"
    return mode + claim.token.encode("ascii")


def milliseconds(ttl: float | None) -> int:
    """At least one, at most a century."""
    return max(1, int(min(ttl or 0.0, 3.2e9) * 1000))


async def converse(
    connection: Connection, script: Script, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float
) -> Any:
    """Run one script on one connection; send the whole of it if the server does not know it. Refused if the reply is an
    error."""
    connection.send(script.by_hash(keys, *args))
    reply = await connection.areceive(until)
    if unknown_script(reply):
        connection.send(script.whole(keys, *args))
        reply = await connection.areceive(until)
    if code := reply_code(reply):
        if code == "READONLY" or "READONLY" in str(reply):  # not always the first word, before Redis 7
            raise Demoted(f"Redis refused: {reply}") from reply
        raise Refused(f"Redis refused: {reply}") from (ClusterNode() if code in MOVED else reply)
    return reply


class Exchange:
    """The requests of one caller about one claim, repeated on another connection when one is lost.

    ``sent``: the server may know the request. ``echo``: a request whose reply was lost may still be executed.
    """

    def __init__(self, pool: Pool, claim: Claim) -> None:
        self._pool = pool
        self._claim = claim
        self._who = holder_of(claim)
        self._keys = keys_of(claim.key)
        self._connection: Connection | None = None
        self._asked = 0.0  # monotonic, before the request was sent
        self.sent = self.echo = False

    async def request(self, script: Script, until: float, args: Callable[[Connection], tuple[Any, ...]]) -> Any:
        """Run ``script`` and return its reply. ``args`` follow the name of the holder. ConnectionFailed if the server
        refuses it, loses too many connections, or has not answered at the monotonic time ``until``."""
        lost = 0
        while True:
            try:
                connection = self._connection = self._connection or self._pool.take() or await self._pool.get(until)
                self._asked = clock.now()
                self.sent = True
                call = (self._who, *args(connection))
                return await converse(connection, script, self._keys, call, min(until, self._asked + REPLY))
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
                if unreachable or lost > LOST_CONNECTIONS or clock.now() >= until:
                    error.uncertain = self.sent
                    raise

    async def settle(self, until: float) -> None:
        """Wait for the replies that are due. ConnectionFailed at the monotonic time ``until``."""
        connection = self._connection
        while connection is not None and connection.owed:
            await connection.areceive(until)

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


async def evaluate(pool: Pool, until: float, script: Script, claim: Claim, *args: Any) -> tuple[Any, bool]:
    """The reply, and whether it had been sent before: each of the scripts may be."""
    exchange = Exchange(pool, claim)
    try:
        reply = await exchange.request(script, until, lambda _: args)
        exchange.give_back()
    except asyncio.CancelledError:
        with contextlib.suppress(ConnectionFailed):
            await finished(exchange.settle(clock.now() + LAST_REPLY))
        exchange.give_back()
        raise
    finally:
        exchange.drop()
    return reply, exchange.echo


class HolderInfo:
    """Describes the holders of this process to operators: JSON with the host, the process, the thread and the name."""

    def __init__(self) -> None:
        host = encode_basestring_ascii(socket.gethostname())
        self._process = f'"host": {host}, "pid": {os.getpid()}'

    def facts(self, key: LockKey) -> bytes:
        """The JSON of a holder of ``key`` in the thread or task that calls."""
        name, thread = encode_basestring_ascii(key.name), encode_basestring_ascii(describe_caller())
        return f'{{"name": {name}, {self._process}, "thread": {thread}}}'.encode("ascii")


class RedisAttempt(Exchange):
    """An attempt to acquire: ask, wait for the hand-over, ask again if a message may be missing, and leave.

    While ``sent`` is true, a caller that gives up calls :meth:`leave`, or has the claim undone later.
    """

    def __init__(self, pool: Pool, claim: Claim, info: bytes, deadline: float) -> None:
        super().__init__(pool, claim)
        self._info = info
        self._deadline = deadline
        self._server = 0  # the server's clock when it answered, µs

    async def ask(self, queue: bool) -> tuple[Grant | None, float]:
        """Return the grant, or None and the monotonic time at which to ask again. ``queue``: join the queue if busy."""
        claim = self._claim
        answer_by = max(
            claim.answer_by, self._deadline, self._pool.ready_at + LEAST_PATIENCE, clock.now() + LEAVE_TIMEOUT
        )
        about = (min(claim.limit, MAX_LIMIT), milliseconds(claim.ttl))
        reply = await self.request(
            ACQUIRE,
            answer_by,
            lambda connection: (*about, connection.subscribe() if queue else b"", self._info),
        )
        self.sent = queue or reply[0] > 0
        return self._answered(reply)

    def _answered(self, reply: list[int]) -> tuple[Grant | None, float]:
        fence, self._server = reply[0], reply[1]
        if fence:
            self.give_back()
            return self._grant(fence, self._asked, 0.0), 0.0
        taken, place = reply[2], reply[3]
        wait = max(taken / 1000, LEAST_WAIT) + min(place * LATER, LATEST)
        return None, clock.now() + wait

    def _grant(self, fence: int, start: float, waited: float) -> Grant:
        ttl = self._claim.ttl or 0.0
        valid_until = start + ttl - drift(ttl) - waited * 0.01
        return Grant(claim=self._claim, fence=fence, acquired_at=start, valid_until=valid_until)

    async def hear(self, until: float) -> Grant | None:
        """Wait until the lock is handed over. Returns None if the caller must ask again, or at the deadline.

        A message is accepted only if it is certainly a grant to this claim; in doubt the caller asks again.
        """
        connection = self._connection
        if connection is None:
            return None
        try:
            while True:
                push: Push | None = await connection.alisten(min(until, self._deadline))
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
            fence, at = map(int, rest.split())
        except ValueError:  # not from our scripts
            return None
        return (fence, at) if who == self._who else None

    def _handed(self, fence: int, at: int) -> Grant | None:
        """The grant of a hand-over at the server's time ``at`` (µs); None if it is none, or of an earlier grant.

        The lease began when the lock was handed over. The server dates that by the clock that it sent in its reply to
        the request, so it was not before ``_asked`` plus the difference of the two, and a process that sleeps over the
        message knows it. A message from before that reply says nothing of the time after it.
        """
        if not fence or at < self._server:
            return None
        waited = (at - self._server) / 1e6
        return self._grant(fence, min(self._asked + waited, clock.now()), waited)

    def _worn(self, grant: Grant) -> bool:
        """Has the allowance for the drift of the clocks during a long wait become larger than that for the lease? Then
        it is better to ask again: the lease is granted already."""
        ttl = self._claim.ttl or 0.0
        return (grant.valid_until or 0.0) < grant.acquired_at + ttl - 2 * drift(ttl)

    async def leave(self, until: float) -> None:
        """Leave the queue and release the lock. ConnectionFailed without an answer by the monotonic time ``until``.

        The server executes the commands of one connection in order, so a request whose reply has not arrived yet is
        undone as well.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionFailed("The connection was lost.", uncertain=True)
        await self.settle(until)
        await converse(connection, LEAVE, self._keys, (self._who,), until)
        self.sent = False
        self.give_back()

    @property
    def connected(self) -> bool:
        """Does the attempt still have the connection on which it asked?"""
        return self._connection is not None
