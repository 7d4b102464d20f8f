"""Who holds and who waits for PostgreSQL's advisory locks, as an operator sees it; their names; and ending a holder."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.records import MOST_WAITING, LockInfo

from .notes import BATCH, TABLE, NotesSQL
from .texts import Holdings, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.names import LockKey

NUMBER = "((classid::bigint << 32) | objid::bigint)"
OURS = (
    "locktype = 'advisory' AND objsubid = 1"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# Each view is read once, whatever the planner thinks of its size, and sessions and names are told apart from the locks,
# of which there may be thousands; what belongs together is joined here. `IS TRUE` makes it a hash: a planner that takes
# a table for small, because it grew since it was analyzed, would compare each lock with each name. Who waits does so
# since its statement began.
_LIST = f"""
WITH locks AS MATERIALIZED (
    SELECT {NUMBER} AS number, granted, mode, pid FROM pg_locks
    JOIN pg_database here ON here.oid = pg_locks.database AND here.datname = current_database()
    WHERE locktype = 'advisory' AND objsubid = 1
)
SELECT (SELECT json_agg(json_build_array(pid::text, application_name, host(client_addr), usename,
                                         extract(epoch FROM backend_start)::text,
                                         extract(epoch FROM state_change)::text,
                                         extract(epoch FROM xact_start)::text, extract(epoch FROM query_start)::text))
        FROM pg_stat_activity WHERE (pid IN (SELECT pid FROM locks)) IS TRUE),
       json_agg(json_build_array(number::text, granted, mode, pid::text)), {{names}}
FROM locks
"""  # noqa: S608 - constants
_NAMES = f"""
(SELECT json_agg(json_build_array(lock_key, name, other, session::text, since, holder))
 FROM {TABLE} WHERE (lock_key IN (SELECT number::text FROM locks)) IS TRUE)
"""  # noqa: S608 - constants
LIST, NAMELESS = _LIST.format(names=_NAMES).encode(), _LIST.format(names="NULL").encode()
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

    pid: str = ""
    application: str | None = None
    address: str | None = None
    user: str | None = None
    began: str | None = None
    changed: str | None = None
    transaction: str | None = None
    asked: str | None = None

    @property
    def ours(self) -> bool:
        return (self.application or "").startswith("distlock")

    def who(self, told: str | None = None) -> str:
        """host:pid:thread as the holder itself has told, or what its session is called; and what the server says."""
        ours = OUR_APPLICATION.match(self.application or "")
        who = readable(told) if told else ours.group(1) if ours else self.application
        server = f"{self.user or 'unknown'} at {self.address or 'local'}, server process {self.pid}"
        return f"{who}, {server}" if who else server


class Note(NamedTuple):
    """What is noted of a key; ``since`` and ``holder`` of the hold by ``session``."""

    name: str | None = None
    other: str = ""
    session: str = ""
    since: int = 0
    holder: str = ""

    def of(self, server: Server) -> bool:
        """Is it of a hold of that session? Process ids come again."""
        return self.session == server.pid and self.since >= float(server.began or 0) * 1_000_000


class Held(NamedTuple):
    """A lock that is held or waited for."""

    number: str
    granted: bool
    mode: str
    pid: str


def infos(alias: str, sessions: str | None, locks: str | None, names: str | None) -> list[LockInfo]:
    """The held locks; for each who waits, and what else its session holds."""
    servers = {each[0]: Server(*each) for each in json.loads(sessions or "[]")}
    notes = {key: Note(readable(name), readable(other), *rest) for key, name, other, *rest in json.loads(names or "[]")}
    held: list[Held] = []
    waiting: dict[str, list[Server]] = defaultdict(list)
    holdings = Holdings()
    for each in json.loads(locks or "[]"):
        lock = Held(*each)
        if lock.granted:
            held.append(lock)
            holdings.add(lock.pid, lock.number, notes.get(lock.number, Note()).name)
        else:
            waiting[lock.number].append(servers.get(lock.pid) or Server(lock.pid))
    for queue in waiting.values():
        queue.sort(key=lambda server: float(server.asked or "inf"))
    return [
        _info(
            alias,
            lock,
            notes.get(lock.number, Note()),
            servers.get(lock.pid) or Server(lock.pid),
            waiting.get(lock.number, ()),
            holdings,
        )
        for lock in held
    ]


def _info(
    alias: str, lock: Held, note: Note, server: Server, waiting: Sequence[Server], holdings: Holdings
) -> LockInfo:
    since = note.since if note.of(server) else None
    details = {"pid": lock.pid or "", "application_name": server.application or ""}
    more = {
        "last_statement": server.changed,
        "backend_start": server.began,
        "noted": since and str(since),
        "also_holds": holdings.others(lock.pid, lock.number),
        "collision": note.other,
    }
    return LockInfo(
        backend=alias,
        key=lock.number,
        name=note.name,
        shared=lock.mode == "ShareLock",
        holder=server.who(note.holder if since else None),
        acquired_at=_acquired_at(since, server),
        waiters=len(waiting),
        waiting=tuple(waiter.who() for waiter in waiting[:MOST_WAITING]),
        details=details | {key: value for key, value in more.items() if value},
    )


def _acquired_at(since: int | None, server: Server) -> datetime | None:
    """As noted; else the start of the transaction, inside which our own sessions never are."""
    if since is not None:
        return datetime.fromtimestamp(since / 1_000_000, UTC)
    if server.transaction is None or server.ours:
        return None
    return datetime.fromtimestamp(float(server.transaction), UTC)


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
        return f"convert_from(decode('{value.encode('ascii', 'replace').hex()}', 'hex'), 'UTF8')"

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
