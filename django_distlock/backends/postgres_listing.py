"""Who holds and who waits for PostgreSQL's advisory locks, as an operator sees it; their names; and ending a holder."""

from __future__ import annotations

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
# A note is of the session that it was written for: pids come again.
SAME = "n.session = pid AND n.since >= coalesce((extract(epoch FROM backend_start) * 1000000)::bigint, 0)"
# Who waits does so since its statement began.
NAMELESS = f"""
SELECT {NUMBER}, granted, mode, pid, application_name, client_addr, usename,
       extract(epoch FROM backend_start), extract(epoch FROM state_change), extract(epoch FROM xact_start),
       extract(epoch FROM query_start), NULL, NULL, NULL, NULL
FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE {OURS}
"""  # noqa: S608 - constants
LIST = NAMELESS.replace(
    "NULL, NULL, NULL, NULL",
    f"n.name, n.other, CASE WHEN {SAME} THEN n.since END, CASE WHEN {SAME} THEN n.holder END",
).replace("WHERE", f"LEFT JOIN {TABLE} n ON n.lock_key = {NUMBER}::text WHERE")
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


class Row(NamedTuple):
    number: str
    granted: str
    mode: str
    pid: str | None
    application: str | None
    address: str | None
    user: str | None
    backend_start: str | None
    state_change: str | None
    xact_start: str | None
    query_start: str | None
    name: str | None
    other: str | None
    since: str | None
    told: str | None

    @property
    def who(self) -> str:
        """host:pid:thread as the holder itself says, or what its session is called; and what the server says."""
        ours = OUR_APPLICATION.match(self.application or "")
        who = readable(self.told) if self.told else ours.group(1) if ours else self.application
        server = f"{self.user or 'unknown'} at {self.address or 'local'}, server process {self.pid}"
        return f"{who}, {server}" if who else server

    @property
    def acquired_at(self) -> datetime | None:
        """As noted; else the start of its transaction, inside which our own sessions never are."""
        if self.since is not None:
            return datetime.fromtimestamp(int(self.since) / 1_000_000, UTC)
        if self.xact_start is None or (self.application or "").startswith("distlock"):
            return None
        return datetime.fromtimestamp(float(self.xact_start), UTC)

    @property
    def readable_name(self) -> str | None:
        return None if self.name is None else readable(self.name)


def infos(alias: str, rows: Sequence[Sequence[str | None]]) -> list[LockInfo]:
    """The held locks; for each who waits, and what else its session holds."""
    held: list[Row] = []
    waiting: dict[str, list[Row]] = defaultdict(list)
    holdings = Holdings()
    for row in map(Row._make, rows):
        if row.granted == "t":
            held.append(row)
            holdings.add(row.pid, row.number, row.readable_name)
        else:
            waiting[row.number].append(row)
    for queue in waiting.values():
        queue.sort(key=lambda row: float(row.query_start or "inf"))
    return [_info(alias, row, waiting.get(row.number, ()), holdings) for row in held]


def _info(alias: str, row: Row, waiting: Sequence[Row], holdings: Holdings) -> LockInfo:
    details = {
        "pid": row.pid or "",
        "application_name": row.application or "",
        "last_statement": row.state_change or "",
        "backend_start": row.backend_start or "",
        "noted": row.since or "",
        "also_holds": holdings.others(row.pid, row.number),
        "collision": readable(row.other or ""),
    }
    return LockInfo(
        backend=alias,
        key=row.number,
        name=row.readable_name,
        shared=row.mode == "ShareLock",
        holder=row.who,
        acquired_at=row.acquired_at,
        waiters=len(waiting),
        waiting=tuple(waiter.who for waiter in waiting[:MOST_WAITING]),
        details={key: value for key, value in details.items() if value or key in ("pid", "application_name")},
    )


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
        session = CASE EXCLUDED.session WHEN 0 THEN old.session ELSE EXCLUDED.session END,
        since = CASE EXCLUDED.session WHEN 0 THEN old.since ELSE EXCLUDED.since END,
        holder = CASE EXCLUDED.session WHEN 0 THEN old.holder ELSE EXCLUDED.holder END
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
