"""One script on a connection, and again on another if the first one was dead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step

from .pool import Link, LinkError, Pool
from .protocol import ReplyError, unknown_script
from .scripts import keys_of
from .target import ClusterNode

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

    from .protocol import Script

# A request that has no reply after this time is sent again on another connection; seconds.
REPLY = 0.5
# So long may a release or a look by an operator take; seconds.
PATIENCE = 2.0
# A link that was idle may be dead, and so may the one after it; a server that hangs up each time does not stop.
LOST_LINKS = 2
# What a node of a Redis Cluster says of the names of others, or of all while it cannot tell.
MOVED = {"MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"}
# A task that is cancelled while a reply is on its way waits for it this long; seconds.
LAST_REPLY = 0.5


class Refused(LinkError):
    """The server answered with an error: it did nothing."""


class Demoted(LinkError):
    """The server has become a replica: it did nothing, and another one is to be asked."""


def holder_of(claim: Claim) -> bytes:
    """What the scripts call the holder or waiter of ``claim``."""
    mode = b"s" if claim.shared else b"n" if claim.limit else b"x"
    return mode + claim.token.encode("ascii")


def milliseconds(ttl: float | None) -> int:
    """At least one, at most a century."""
    return max(1, int(min(ttl or 0.0, 3.2e9) * 1000))


def converse(link: Link, script: Script, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float) -> Flow[Any]:
    """One script on one link; the whole of it if the server does not know it. Refused if it answers with an error."""
    link.send(script.by_hash(keys, *args))
    reply = yield Step(link.receive, link.areceive, (until,))
    if unknown_script(reply):
        link.send(script.whole(keys, *args))
        reply = yield Step(link.receive, link.areceive, (until,))
    if isinstance(reply, ReplyError):
        if "READONLY" in str(reply):  # not always the first word, before Redis 7
            raise Demoted(f"Redis refused: {reply}") from reply
        raise Refused(f"Redis refused: {reply}") from (ClusterNode() if reply.code in MOVED else reply)
    return reply


def evaluate(pool: Pool, until: float, script: Script, claim: Claim, *args: Any) -> Flow[tuple[Any, bool]]:
    """The reply, and whether it had been sent before: each of the scripts may be."""
    keys, lost, sent = keys_of(claim.key), 0, False
    while True:
        try:
            link = pool.take() or (yield from pool.link(until))
        except LinkError as error:
            error.uncertain = sent
            raise
        try:
            args_of = (holder_of(claim), *args)
            reply = yield from converse(link, script, keys, args_of, min(until, monotonic() + REPLY))
        except Refused:
            pool.give(link)
            raise
        except LinkError as error:
            pool.discard(link)
            if isinstance(error, Demoted):
                pool.discard_idle()
            lost, sent = lost + (not error.timed_out), sent or error.uncertain
            if lost > LOST_LINKS or monotonic() >= until:
                error.uncertain = sent
                raise
            continue
        except asyncio.CancelledError:
            yield from _finish(pool, link)
            raise
        except BaseException:
            pool.discard(link)
            raise
        pool.give(link)
        return reply, sent


def _finish(pool: Pool, link: Link) -> Flow[None]:
    """A task was cancelled while a reply was on its way."""
    until = monotonic() + LAST_REPLY
    with contextlib.suppress(LinkError):
        while link.owed:
            yield Step(link.receive, link.areceive, (until,))
    pool.give(link)
