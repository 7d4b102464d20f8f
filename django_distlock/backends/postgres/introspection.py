"""Who holds and who waits for locks of PostgreSQL, as an operator sees it; their names; and ending a holder."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.query import Chosen
from django_distlock.backends.sessions.names import BATCH, TABLE, NotesSQL
from django_distlock.backends.text import others_of, readable
from django_distlock.records import LockInfo

from .select import CLOCK, NUMBER, PREPARED, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.keys import LockKey

OURS = (
    "locktype = 'advisory' AND objsubid = 1"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# The conditions are looked at first: only a session that holds this very lock is ended.
BREAK = f"""
SELECT pg_terminate_backend(pid) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE {OURS} AND granted AND {NUMBER} = %d AND pid = %d
AND extract(epoch FROM backend_start)::text IS NOT DISTINCT FROM {{began}} {{noted}} LIMIT 1
"""  # noqa: S608 - constants
# A session that gave the lock back and took it again has another note.
STILL = f"AND EXISTS (SELECT FROM {TABLE} WHERE lock_key = '%d' AND session = pid AND since = %d)"
UNDEFINED_TABLE, INSUFFICIENT_PRIVILEGE = "42P01", "42501"

# What our sessions call themselves.
OUR_APPLICATION = re.compile(r"distlock (\S+:\d+)")


class Server(NamedTuple):
    """What the server says of a session."""

    pid: str | None = ""
    application: str | None = None
    address: str | None = None
    user: str | None = None

    def who(self, told: str | None = None) -> str:
        """host:pid:thread as the holder itself has told, or what its session is called; and what the server says."""
        if not self.pid or self.pid == "0":
            return PREPARED
        ours = OUR_APPLICATION.match(self.application or "")
        who = readable(told) if told else ours.group(1) if ours else self.application
        server = f"{self.user or 'unknown'} at {self.address or 'local'}, server process {self.pid}"
        return f"{who}, {server}" if who else server


class Held(NamedTuple):
    """A lock that is held, as the statement of postgres_select shows it; times in microseconds since 1970."""

    kind: str
    key: str
    shared: bool
    pid: str | None
    name: str | None
    since: int | None
    noted: int | None
    told: str | None
    other: str | None
    waiters: int
    mode: str | None
    blocks: str | None
    application: str | None
    address: str | None
    user: str | None
    began: str | None
    changed: str | None

    @property
    def server(self) -> Server:
        return Server(self.pid, self.application, self.address, self.user)


def chosen(alias: str, row: Sequence[str | None]) -> Chosen:
    """What the one row of the statement says."""
    total, matching, held, others, queues = row
    sessions = {
        pid: (count, [(key, readable(name) if name else key) for key, name in some])
        for pid, count, some in _list(others)
    }
    waiting = {key: tuple(Server(*who).who() for who in some) for key, some in _list(queues)}
    found = (Held(*each) for each in _list(held))
    infos = [
        _named(alias, each, waiting.get(each.key, ()), *sessions.get(each.pid, (1, ())))
        if each.kind == "named"
        else _blocking(alias, each)
        for each in found
    ]
    return Chosen(infos, int(matching or 0), int(total or 0))


def _list(text: str | None) -> list[Any]:
    return json.loads(text) if text else []


def _named(alias: str, lock: Held, waiting: tuple[str, ...], count: int, beside: Iterable[tuple[str, str]]) -> LockInfo:
    """``beside`` it the session holds others, ``count`` with this one."""
    more = {
        "last_statement": lock.changed,
        "backend_start": lock.began,
        "noted": lock.noted and str(lock.noted),
        "also_holds": others_of(beside, count, lock.key),
        "collision": lock.other and readable(lock.other),
    }
    details = {"pid": lock.pid, "application_name": lock.application or ""} if lock.pid else {}
    return LockInfo(
        backend=alias,
        key=lock.key,
        name=None if lock.name is None else readable(lock.name),
        shared=lock.shared,
        holder=lock.server.who(lock.told),
        acquired_at=_moment(lock.since),
        waiters=lock.waiters,
        waiting=waiting,
        details=details | {key: value for key, value in more.items() if value},
    )


def _blocking(alias: str, lock: Held) -> LockInfo:
    """On a table or its rows."""
    says = f"{lock.user or 'unknown'} at {lock.address or 'local'}, server process {lock.pid}, {lock.application}"
    details = {"kind": lock.kind, "pid": lock.pid, "mode": lock.mode, "blocks": lock.blocks}
    return LockInfo(
        backend=alias,
        key=lock.key,
        name=lock.name,
        holder=PREPARED if lock.pid == "0" else says,
        acquired_at=_moment(lock.since),
        waiters=lock.waiters,
        details={key: value or "" for key, value in details.items()},
    )


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1_000_000, UTC)


def breaking(info: LockInfo) -> bytes | None:
    """The statement that ends the session which ``info`` shows, if it still holds the lock; None: it shows none."""
    try:
        number, pid = int(info.key), int(info.details["pid"])
        began = float(info.details["backend_start"]) if "backend_start" in info.details else None
        noted = int(info.details["noted"]) if "noted" in info.details else None
    except (KeyError, ValueError):
        return None
    if not -(2**63) <= number < 2**63:
        return None
    statement = BREAK.format(
        began="NULL" if began is None else f"'{info.details['backend_start']}'",
        noted="" if noted is None else STILL % (number, noted),
    )
    return (statement % (number, pid)).encode()


class PostgresNotes(NotesSQL):
    clock = CLOCK
    passing = frozenset({"40P01", "55P03", "57014", "40001"})

    def text(self, value: str) -> str:
        return literal(value)

    def key(self, key: LockKey) -> str:
        return str(key.number)

    def write(self, rows: str) -> list[bytes]:
        statement = f"""
        INSERT INTO {TABLE} AS old (lock_key, alias, name, other, seen_at, session, since, holder) VALUES {rows}
        ON CONFLICT (lock_key) DO UPDATE SET seen_at = EXCLUDED.seen_at,
        other = CASE WHEN (old.name, old.alias) = (EXCLUDED.name, EXCLUDED.alias) THEN old.other ELSE EXCLUDED.name END,
        session = CASE WHEN EXCLUDED.session > 0 THEN EXCLUDED.session
                       WHEN EXCLUDED.session = -old.session THEN 0 ELSE old.session END,
        since = CASE WHEN EXCLUDED.session > 0 THEN EXCLUDED.since ELSE old.since END,
        holder = CASE WHEN EXCLUDED.session > 0 THEN EXCLUDED.holder ELSE old.holder END
        RETURNING lock_key, alias, name, other
        """  # noqa: S608 - literals of digits
        return [statement.encode()]

    def delete(self, condition: str) -> bytes:
        statement = f"""
        WITH gone AS (DELETE FROM {TABLE} WHERE lock_key IN
            (SELECT lock_key FROM {TABLE} WHERE {condition} LIMIT {BATCH}) RETURNING 1)
        SELECT count(*) FROM gone
        """  # noqa: S608 - as above
        return statement.encode()
