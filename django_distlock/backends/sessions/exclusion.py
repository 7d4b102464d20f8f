"""The proof, at the first lock of an alias in a process, that its server keeps a second session out (R22b).

Some servers accept the lock statements of PostgreSQL or MySQL and grant them to every session: CockroachDB, YugabyteDB
and TiDB where their error is switched off, or a proxy that sends two sessions to two servers. No version number proves
it as surely as a second session that asks for the lock.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NoReturn, TypeVar

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation
from django_distlock.keys import LockKey

from .session import STATEMENT_LIMIT, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

S = TypeVar("S", bound=Session)

# A connection takes some seven round trips; a full pooler gives no answer. Seconds.
CONNECT_LIMIT = 5.0


def limit(until: float, most: float = STATEMENT_LIMIT) -> float:
    """The deadline of the next step of the proof: at least LEAST_PATIENCE from now, at most ``most`` seconds.

    The proof takes some fifteen round trips. One that is cut short begins again at the next lock, so with the caller's
    deadline alone a distant server would never be proven. The watchdog does not know these sessions yet.
    """
    now = clock.now()
    return max(min(until, now + most), now + LEAST_PATIENCE)


async def prove(alias: str, first: S, connect: Callable[[float], Awaitable[S]], shared: bool, until: float) -> None:
    """Return if the server refuses a second session the lock that ``first`` holds, in every mode. ``shared``: the
    engine has shared locks.

    UnsupportedOperation if the server grants it, BackendUnavailable if there is no proof by ``until``.
    """
    try:
        second = await connect(limit(until, CONNECT_LIMIT))
        try:
            await first.ensure_bound(alias, second, limit(until))
            await _refused(alias, first, second, shared, until)
        finally:
            second.close()
    except (BackendUnavailable, ServerError, SessionDead, StatementTimeout) as error:
        raise unproven(alias, error) from error


async def _refused(alias: str, first: S, second: S, shared: bool, until: float) -> None:
    """Ask with a random key: those of the application may be busy."""
    key = LockKey(alias, "distlock-probe", secrets.token_bytes(32))
    for mode, asked in ((False, (False, True)), (True, (False,))) if shared else ((False, (False,)),):
        if not await first.lock(key, mode, limit(until)):
            raise ServerError(0, "a key that no other session knows is busy")
        for other in asked:
            if await second.lock(key, other, limit(until)):
                await refuse(alias, second, limit(until))
        await first.clear(limit(until))


async def refuse(alias: str, session: Session, until: float) -> NoReturn:
    try:
        rows = await session.query(b"SELECT version()", until)
        version = rows[0][0].decode() if isinstance(rows[0][0], bytes) else rows[0][0]
    except (ServerError, SessionDead, StatementTimeout):  # that it does not exclude is certain without it
        version = "of an unknown version"
    raise UnsupportedOperation(
        f"The server of alias {alias!r} ({version}) grants one lock to two sessions: its locks exclude nobody. Take "
        "another backend there, such as leasetable.LeaseTableBackend or redis.RedisBackend. A session_database must "
        "lead to the same database of the same server."
    )


def unproven(alias: str, error: Exception) -> BackendUnavailable:
    lines = str(error).strip().splitlines() or ["no answer in time"]
    return BackendUnavailable(
        f"Alias {alias!r}: before the first lock of a process a second session asks whether the server excludes it, "
        f"and that failed: {lines[0]} It needs one more connection for a moment."
    )
