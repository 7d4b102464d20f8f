"""One script on a connection, and again on another if the first one was dead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step

from .connection import Connection, ConnectionFailed, reply_code
from .scripts import keys_of, unknown_script
from .target import ClusterNode

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

    from .pool import Pool
    from .scripts import Script

# A request that has no reply after this time is sent again on another connection; seconds.
REPLY = 0.5
# So long may a release or a look by an operator take; seconds.
PATIENCE = 2.0
# A connection that was idle may be dead, and so may the one after it; a server that hangs up each time does not stop.
LOST_CONNECTIONS = 2
# What a node of a Redis Cluster says of the names of others, or of all while it cannot tell.
MOVED = {"MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"}
# A task that is cancelled while a reply is on its way waits for it this long; seconds.
LAST_REPLY = 0.5


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
