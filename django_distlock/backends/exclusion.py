"""The proof, at the first lock of an alias in a process, that its server keeps a second session out (R22b).

Some servers accept the statements of PostgreSQL's or MySQL's locks and grant them to every session: CockroachDB,
YugabyteDB and TiDB where their error is switched off, a proxy that sends two sessions to two servers. No version number
tells that as surely as a second session that asks.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NoReturn, TypeVar

from django_distlock.clock import monotonic
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation
from django_distlock.names import LockKey
from django_distlock.waiting import Call, Flow

from .session import STATEMENT_LIMIT, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound=Session)


def limit(until: float) -> float:
    """The deadline of the proof. It is short enough for the statements to be ended by it: the watchdog does not know
    these sessions yet."""
    return min(until, monotonic() + STATEMENT_LIMIT)


def prove(alias: str, first: S, connect: Callable[[float], Flow[S]], shared: bool, until: float) -> Flow[None]:
    """Return if the server refuses a second session the lock that ``first`` holds, in every mode. ``shared``: the
    engine has shared locks.

    UnsupportedOperation if it grants it, BackendUnavailable if that could not be found out by ``until``.
    """
    until = limit(until)
    try:
        second = yield from connect(until)
        try:
            yield from first.ensure_bound(alias, second, until)
            yield from _refused(alias, first, second, shared, until)
        finally:
            second.close()
    except (BackendUnavailable, ServerError, SessionDead, StatementTimeout) as error:
        raise unproven(alias, error) from error


def _refused(alias: str, first: S, second: S, shared: bool, until: float) -> Flow[None]:
    """With a random key: those of the application may be busy."""
    key = LockKey(alias, "distlock-probe", secrets.token_bytes(32))
    for mode, asked in ((False, (False, True)), (True, (False,))) if shared else ((False, (False,)),):
        if not (yield from first.lock(key, mode, until)):
            raise ServerError(0, "a key that no other session knows is busy")
        for other in asked:
            if (yield from second.lock(key, other, until)):
                yield from refuse(alias, second, until)
        yield from first.clear(until)


def refuse(alias: str, session: Session, until: float) -> Flow[NoReturn]:
    rows = yield Call(session, "query", (b"SELECT version()", until))
    version = rows[0][0].decode() if isinstance(rows[0][0], bytes) else rows[0][0]
    raise UnsupportedOperation(
        f"The server of alias {alias!r} ({version}) grants one lock to two sessions: its locks exclude nobody. Take "
        "another backend there, such as leasetable.LeaseTableBackend or redis.RedisBackend."
    )


def unproven(alias: str, error: Exception) -> BackendUnavailable:
    lines = str(error).strip().splitlines() or ["no answer in time"]
    return BackendUnavailable(
        f"Alias {alias!r}: before the first lock of a process a second session asks whether the server excludes it, "
        f"and that failed: {lines[0]} It needs one more connection for a moment."
    )
