"""The Lua scripts of a lock, and running one of them on the server.

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
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step

from .connection import Connection, ConnectionFailed, pack, reply_code
from .target import ClusterNode

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

    from .pool import Pool

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


class Script:
    """A Lua script. It is sent by its hash, and as a whole to a server that answers NOSCRIPT: it was restarted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVALSHA, packed."""
        return pack("EVALSHA", self.sha, len(keys), *keys, *args)

    def whole(self, keys: tuple[bytes, ...], *args: bytes | str | int) -> bytes:
        """EVAL, packed; the server keeps the script."""
        return pack("EVAL", self.text, len(keys), *keys, *args)


def unknown_script(reply: object) -> bool:
    """Does the server not know the script of :meth:`Script.by_hash`? Then nothing was done."""
    return reply_code(reply) == "NOSCRIPT"


def _text(name: str) -> str:
    """A file of ``scripts/`` with the files that it includes, without the lines that are comments."""
    text = (files(__package__) / "scripts" / name).read_text("utf-8")
    text = re.sub(r"^-- include (.+)\n", lambda match: _text(match[1]), text, flags=re.MULTILINE)
    return re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)


def _script(name: str) -> Script:
    constants = {"KEPT": KEPT, "LATE": LATE, "WARNED": WARNED}
    return Script(re.sub(r"\b(KEPT|LATE|WARNED)\b", lambda match: str(constants[match[1]]), _text(f"{name}.lua")))


ACQUIRE, RELEASE, LEAVE, EXTEND, HOLDS, BREAK, LOOK = map(
    _script, ("acquire", "release", "leave", "extend", "holds", "break", "look")
)


def keys_of(key: LockKey) -> tuple[bytes, ...]:
    """The keys of one lock, in the order in which the scripts expect them."""
    return keys_named(key.text_bytes)


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


def converse(
    connection: Connection, script: Script, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float
) -> Flow[Any]:
    """Run one script on one connection; send the whole of it if the server does not know it. Refused if the reply is an
    error."""
    connection.send(script.by_hash(keys, *args))
    reply = yield Step(connection.receive, connection.areceive, (until,))
    if unknown_script(reply):
        connection.send(script.whole(keys, *args))
        reply = yield Step(connection.receive, connection.areceive, (until,))
    if code := reply_code(reply):
        if code == "READONLY" or "READONLY" in str(reply):  # not always the first word, before Redis 7
            raise Demoted(f"Redis refused: {reply}") from reply
        raise Refused(f"Redis refused: {reply}") from (ClusterNode() if code in MOVED else reply)
    return reply


def evaluate(pool: Pool, until: float, script: Script, claim: Claim, *args: Any) -> Flow[tuple[Any, bool]]:
    """The reply, and whether it had been sent before: each of the scripts may be."""
    keys, lost, sent = keys_of(claim.key), 0, False
    while True:
        try:
            connection = pool.take() or (yield from pool.get(until))
        except ConnectionFailed as error:
            error.uncertain = sent
            raise
        try:
            args_of = (holder_of(claim), *args)
            reply = yield from converse(connection, script, keys, args_of, min(until, monotonic() + REPLY))
        except Refused:
            pool.give(connection)
            raise
        except ConnectionFailed as error:
            pool.discard(connection)
            if isinstance(error, Demoted):
                pool.discard_idle()
            lost, sent = lost + (not error.timed_out), sent or error.uncertain
            if lost > LOST_CONNECTIONS or monotonic() >= until:
                error.uncertain = sent
                raise
            continue
        except asyncio.CancelledError:
            yield from _finish(pool, connection)
            raise
        except BaseException:
            pool.discard(connection)
            raise
        pool.give(connection)
        return reply, sent


def _finish(pool: Pool, connection: Connection) -> Flow[None]:
    """A task was cancelled while a reply was on its way."""
    until = monotonic() + LAST_REPLY
    with contextlib.suppress(ConnectionFailed):
        while connection.owed:
            yield Step(connection.receive, connection.areceive, (until,))
    pool.give(connection)
