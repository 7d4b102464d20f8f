"""Does a pooler keep a server session for each of its clients (pgbouncer in session mode), or not?

Neither the process id in the greeting nor ``pg_backend_pid()`` can tell: the first is the pooler's own in every mode,
and in transaction mode an idle pool may give the same server session again and again. A notification can: it reaches a
client that is silent only if the server session that listens is bound to that client
(https://www.pgbouncer.org/features.html: LISTEN works in session mode, and never in transaction mode).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.sockets import READY
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from .session import PostgresSession

CHANNEL = b"distlock_probe"
# A notification comes within milliseconds, or it does not come; seconds.
COMES_WITHIN = 1.0


def ensure_bound(first: PostgresSession, alias: str, second: Any, until: float) -> Flow[None]:
    """UnsupportedOperation if the two sessions go through a pooler that does not bind server sessions to clients."""
    if first.pooled and (first.server_id == second.server_id or not (yield from _heard(first, second, until))):
        raise UnsupportedOperation(
            f"The lock sessions of alias {alias!r} go through a pooler that gives each transaction another server "
            "session (pgbouncer in transaction mode), where session locks leak and exclude nobody. Set "
            "OPTIONS['session_database'] to a database alias that connects directly or through a pool in session "
            "mode, or take the lock inside atomic(), where it belongs to the transaction."
        )


def _heard(first: PostgresSession, second: PostgresSession, until: float) -> Flow[bool]:
    """Does ``first``, while it asks for nothing, get the notification that ``second`` sends?"""
    payload = secrets.token_hex(16).encode()
    yield Step(first.query, first.aquery, (b"LISTEN " + CHANNEL, until))
    yield Step(second.query, second.aquery, (b"SELECT pg_notify('%s', '%s')" % (CHANNEL, payload), until))
    until = min(until, monotonic() + COMES_WITHIN)
    heard = False
    while not heard and (yield Step(READY.poll, READY.apoll, (first.fd, False, until))):
        heard = _is_there(first, payload)
    yield Step(first.query, first.aquery, (b"UNLISTEN " + CHANNEL, until + COMES_WITHIN))
    return heard


def _is_there(session: PostgresSession, payload: bytes) -> bool:
    """Read what has come; other processes send on the same channel."""
    try:
        session.conn.consume_input()
    except OperationalError as error:
        raise session.died(error) from error
    while (notification := session.conn.notifies()) is not None:
        if notification.extra == payload:
            return True
    return False
