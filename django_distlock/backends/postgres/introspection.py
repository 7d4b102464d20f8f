"""PostgreSQL's locks as an operator sees them: holders, waiters and names; and ending a holder.

The statement that lists them filters, sorts and cuts on the server, so that neither the time on the wire nor the memory
here grows with the number of locks.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.query import Chosen
from django_distlock.backends.sessions.session import STATEMENT_LIMIT
from django_distlock.backends.text import MOST_NAMED, NAMES_TABLE, others_of, printable, readable
from django_distlock.concurrency import clock
from django_distlock.keys import MAX_NAME_LENGTH
from django_distlock.records import MOST_WAITING, LockInfo
from django_distlock.schema import NOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.backends.query import LockQuery, Mine

NUMBER = "((classid::bigint << 32) | objid::bigint)"
CLOCK = NOW["postgresql"]
# The holder of a lock that no session holds: https://www.postgresql.org/docs/current/sql-prepare-transaction.html
PREPARED = "a prepared transaction"
# The server must stop soon after the operator has given up, even in an expensive search.
_LIMITED = f"SET LOCAL statement_timeout = {int(STATEMENT_LIMIT * 1000) + 100};"

# Each view is read once, regardless of the size that the planner expects; the joins are made here.
_SEEN = f"""
WITH here AS MATERIALIZED (SELECT oid FROM pg_database WHERE datname = current_database()
), locks AS MATERIALIZED (
    SELECT locktype, {NUMBER} AS number, granted, mode, pid, relation, database FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM here)
    OR locktype IN ('relation', 'tuple', 'transactionid')
), advisory AS MATERIALIZED (
    SELECT number, number::text AS key, granted, mode, pid,
           (count(*) FILTER (WHERE NOT granted) OVER (PARTITION BY number))::int AS waiters
    FROM locks WHERE locktype = 'advisory'
), sessions AS MATERIALIZED (
    SELECT pid, application_name, host(client_addr) AS address, usename::text, state_change, query_start,
           (extract(epoch FROM backend_start) * 1000000)::bigint AS began,
           extract(epoch FROM backend_start)::text AS backend_start,
           (extract(epoch FROM xact_start) * 1000000)::bigint AS entered
    FROM pg_stat_activity
), notes AS MATERIALIZED ({{notes}}
), mine AS MATERIALIZED ({{mine}}
)"""  # noqa: S608 - constants
# `IS TRUE` makes it a hash: a planner that takes the table for small, because it grew since it was analyzed, would
# compare each lock with each name.
_NOTES = f"""
    SELECT lock_key, name, session, since, holder FROM {NAMES_TABLE}
    WHERE (lock_key IN (SELECT key FROM advisory)) IS TRUE"""  # noqa: S608 - constants
_NO_NOTES = """
    SELECT ''::text AS lock_key, ''::text AS name, 0::bigint AS session, 0::bigint AS since,
           ''::text AS holder WHERE false"""
_MINE = f"""
    SELECT key, pid, name, {CLOCK} - age AS since, holder
    FROM json_to_recordset(%s::json) AS m(key text, pid int, name text, age bigint, holder text)"""  # noqa: S608 - constants
# Full joins, because the planner never turns them into nested loops: it always takes pg_locks for short.
# A note belongs to a hold of the session that it names if that session had begun by then: process ids are used again.
# A lock of another program is at most as old as its transaction; our own sessions are in none.
_NAMED = """, joined AS MATERIALIZED (
    SELECT l.key, l.granted, l.mode = 'ShareLock' AS shared, l.pid, l.waiters,
           coalesce(m.name, n.name) AS name, m.since AS mine, m.holder AS me, n.since AS noted,
           n.holder AS told, (n.session = l.pid AND n.since >= coalesce(s.began, 0)) IS TRUE AS of, s.application_name,
           s.address, s.usename, s.backend_start, s.state_change, s.query_start, s.entered
    FROM advisory l
    FULL JOIN notes n ON n.lock_key = l.key
    FULL JOIN sessions s ON s.pid = l.pid
    FULL JOIN mine m ON m.key = l.key AND m.pid = l.pid
), named AS (
    SELECT 'named' AS kind, key, shared, pid, name,
           coalesce(mine, CASE WHEN of THEN noted WHEN application_name LIKE 'distlock%' THEN NULL ELSE entered END)
               AS since,
           CASE WHEN of THEN noted END AS noted, coalesce(me, CASE WHEN of THEN told END) AS told, waiters,
           application_name, address, usename, backend_start, state_change, NULL AS mode, NULL AS blocks
    FROM joined WHERE granted
)"""
# pg_blocking_pids(), which stops the lock manager for a moment, is called for waiters only:
# https://www.postgresql.org/docs/current/functions-info.html. A session that waits for a row waits for the end of a
# transaction and holds, or waits for, the lock on that row. A session that is merely ahead in the queue is no holder.
# The session of a prepared transaction is 0 there, and unknown in pg_locks.
_BLOCKING = """, waiting AS (
    SELECT pid, relation, 'relation' AS kind FROM locks
    WHERE NOT granted AND locktype = 'relation' AND database = (SELECT oid FROM here)
    UNION ALL
    SELECT w.pid, t.relation, 'row' FROM locks w JOIN locks t ON t.pid = w.pid AND t.locktype = 'tuple'
    WHERE NOT w.granted AND w.locktype IN ('tuple', 'transactionid') AND t.database = (SELECT oid FROM here)
    LIMIT 100
), pairs AS (
    SELECT DISTINCT w.kind, w.relation, b.pid, w.pid AS waiter
    FROM waiting w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
), blocking AS (
    SELECT p.kind, concat_ws(' ', p.kind, p.relation::regclass::text, p.pid) AS key, false AS shared, p.pid,
           p.relation::regclass::text AS name, s.entered AS since, NULL::bigint AS noted, NULL AS told,
           count(DISTINCT p.waiter)::int AS waiters, s.application_name, s.address, s.usename, s.backend_start,
           s.state_change, coalesce(string_agg(DISTINCT h.mode, ', '), 'row') AS mode,
           string_agg(DISTINCT p.waiter::text, ', ') AS blocks
    FROM pairs p
    LEFT JOIN locks h
        ON coalesce(h.pid, 0) = p.pid AND h.relation = p.relation AND h.granted AND h.locktype = 'relation'
    LEFT JOIN sessions s ON s.pid = p.pid
    WHERE p.kind = 'row' OR h.mode IS NOT NULL
    GROUP BY p.kind, p.relation, p.pid, s.entered, s.application_name, s.address, s.usename, s.backend_start,
             s.state_change
    LIMIT 200
)"""
_FOUND = """, found AS MATERIALIZED (
    SELECT * FROM named UNION ALL SELECT * FROM blocking
), wanted AS MATERIALIZED (
    SELECT * FROM found WHERE {condition}
), page AS MATERIALIZED (
    SELECT * FROM wanted ORDER BY {order} LIMIT {limit} OFFSET {offset}
)"""
# For the sessions and queues of this page only: what else is held, and the waiters, oldest statement first.
_DETAILS = f""", others AS (
    SELECT pid, json_build_array(pid::text, max(count),
                                 json_agg(json_build_array(key, name)) FILTER (WHERE place <= {MOST_NAMED + 1})) AS told
    FROM (SELECT pid, key, name, count(*) OVER (PARTITION BY pid) AS count,
                 row_number() OVER (PARTITION BY pid) AS place
          FROM joined WHERE granted AND (pid IN (SELECT pid FROM page WHERE kind = 'named')) IS TRUE) o
    GROUP BY pid
), queues AS (
    SELECT key, json_agg(json_build_array(pid::text, application_name, address, usename) ORDER BY place) AS told
    FROM (SELECT key, pid, application_name, address, usename,
                 row_number() OVER (PARTITION BY key ORDER BY query_start, pid) AS place
          FROM joined WHERE NOT granted AND (key IN (SELECT key FROM page WHERE waiters > 0)) IS TRUE) q
    WHERE place <= {MOST_WAITING} GROUP BY key
)
SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM wanted),
       (SELECT json_agg(json_build_array(kind, key, shared, pid::text, name, since, noted, told, waiters, mode,
                                         blocks, application_name, address, usename, backend_start,
                                         extract(epoch FROM state_change)::text) ORDER BY {{order}}) FROM page),
       (SELECT json_agg(told) FROM others), (SELECT json_agg(json_build_array(key, told)) FROM queues)
"""  # noqa: S608 - constants

_ASCII = 'COLLATE "C"'
_ASCII_UPPER = re.compile("[A-Z]+")
_BYTES = f"""convert_to(lower(%s {_ASCII}),
    CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)"""
_HOLDER = f"""CASE WHEN coalesce(pid, 0) = 0 THEN '{PREPARED}' ELSE concat_ws(', ',
    coalesce(nullif(ltrim(told, '"'), ''),
    substring(application_name FROM '^distlock (\\S+:\\d+)'), nullif(application_name, '')),
    concat(coalesce(usename, 'unknown'), ' at ', coalesce(address, 'local'), ', server process ', pid)) END"""
_ORDERS = {
    "name": f"""lower(ltrim(coalesce(name, key), '"') {_ASCII})""",
    "mode": "shared",
    "holder": f"lower({_HOLDER} {_ASCII})",
    "since": "since",
    "waiters": "waiters",
}

OURS = (
    "locktype = 'advisory' AND objsubid = 1"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# The locks of this session, in the caller's transaction.
MINE = f"SELECT {NUMBER} FROM pg_locks WHERE {OURS} AND granted AND pid = pg_backend_pid()"  # noqa: S608 - constants
HELD = f"SELECT DISTINCT {NUMBER}::text FROM pg_locks WHERE {OURS} AND granted AND {NUMBER} IN ({{keys}})"  # noqa: S608 - numbers
# The conditions come first: only a session that holds this very lock is ended.
BREAK = f"""
SELECT pg_terminate_backend(pid) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE {OURS} AND granted AND {NUMBER} = %d AND pid = %d
AND extract(epoch FROM backend_start)::text IS NOT DISTINCT FROM {{began}} {{noted}} LIMIT 1
"""  # noqa: S608 - constants
# A session that gave the lock back and took it again has another note.
STILL = f"AND EXISTS (SELECT FROM {NAMES_TABLE} WHERE lock_key = '%d' AND session = pid AND since = %d)"
UNDEFINED_TABLE, INSUFFICIENT_PRIVILEGE = "42P01", "42501"

# The application name of our sessions.
OUR_APPLICATION = re.compile(r"distlock (\S+:\d+)")


def literal(text: str) -> str:
    """ASCII text as hexadecimal digits, which need no quoting in any mode of the server."""
    return f"convert_from(decode('{text.encode('ascii', 'replace').hex()}', 'hex'), 'UTF8')"


def listing(query: LockQuery, mine: Sequence[Mine] = (), known: Sequence[str] = (), *, notes: bool = True) -> bytes:
    """The statement that lists. It returns one row: how many locks there are, how many match, the locks of the page,
    what else their sessions hold, and their waiters; the last three as JSON.

    ``known`` are keys of locks whose name this process knows, and whose name matches. ``notes``: with the names from
    the names' table, which may not be there.
    """
    order = _order(query.order)
    parts = [
        _LIMITED,
        _SEEN.format(notes=_NOTES if notes else _NO_NOTES, mine=_MINE % literal(_in_ages(mine))),
        _NAMED,
        _BLOCKING,
        _FOUND.format(
            condition=" AND ".join(_conditions(query, known)) or "true",
            order=order,
            limit="ALL" if query.stop is None else max(0, query.stop - query.start),
            offset=query.start,
        ),
        _DETAILS.format(order=order),
    ]
    return "".join(parts).encode()


def _in_ages(mine: Iterable[Mine]) -> str:
    """As JSON, with ages instead of times: clocks of hosts differ."""
    now = clock.now()
    return json.dumps(
        [
            {
                "key": each.key,
                "pid": int(each.session or 0),
                "name": printable(each.name),
                "age": int((now - each.held_at) * 1_000_000),
                "holder": printable(each.holder),
            }
            for each in mine
        ]
    )


def _order(order: Sequence[str]) -> str:
    """Unknown values come last in both directions. The key is the last column, so that pages do not overlap."""
    fields = [field for field in order if field.removeprefix("-") in _ORDERS]
    parts = [f"{_ORDERS[f.removeprefix('-')]} {'DESC' if f[:1] == '-' else 'ASC'} NULLS LAST" for f in fields]
    return ", ".join([*parts, f"key {_ASCII}", "pid"])


def _conditions(query: LockQuery, known: Sequence[str]) -> list[str]:
    found = []
    if query.shared is not None:
        found.append("shared" if query.shared else "NOT shared")
    if query.awaited is not None:
        found.append("waiters > 0" if query.awaited else "waiters = 0")
    if query.older is not None:
        found.append(f"since < {CLOCK} - {int(query.older * 1_000_000)}")
    if query.kind is not None:
        found.append(f"kind = {literal(query.kind)}")
    if query.keys is not None:
        found.append(_among(query.keys))
    if query.text:
        found.append(f"({_contains(query.text)} OR {_among(known)})")
    return found


def _among(keys: Iterable[str]) -> str:
    return f"key IN ({', '.join(map(literal, keys)) or 'NULL'})"


def _contains(text: str) -> str:
    """Our names are kept as JSON if they are not plain ASCII: there a match begins where a character does. Names of
    tables, and what another program wrote, are kept as they are."""
    if len(text) > MAX_NAME_LENGTH:  # no name is as long, and the expression takes long to compile
        return "false"
    in_json = literal(rf'^"(\\u[0-9a-f]{{4}}|\\[^u]|[^\\])*{"".join(map(_in_json, text))}')
    name = (
        f"CASE WHEN kind = 'named' AND name LIKE '\"%' THEN name {_ASCII} ~* {in_json} ELSE {_within('name', text)} END"
    )
    return f"{name} OR {_within('key', text)}"


def _within(column: str, text: str) -> str:
    """Compare bytes: not every database has every character, and SQL_ASCII none but its own."""
    cases = {case for case in (text, text.lower(), text.upper()) if "\0" not in case}
    wanted = {_ASCII_UPPER.sub(lambda found: found[0].lower(), case).encode("utf-8", "surrogatepass") for case in cases}
    found = [f"position(decode('{each.hex()}', 'hex') IN {_BYTES % column}) > 0" for each in sorted(wanted)]
    return f"({' OR '.join(found) or 'false'})"


def _in_json(character: str) -> str:
    """A regular expression for a character in a JSON text, in upper or lower case."""
    cases = {character, character.lower(), character.upper(), character.title()}
    return f"({'|'.join(re.escape(json.dumps(case)[1:-1]) for case in sorted(cases))})"


class Server(NamedTuple):
    """A session as the server describes it."""

    pid: str | None = ""
    application: str | None = None
    address: str | None = None
    user: str | None = None

    def described(self, told: str | None = None) -> str:
        """host:pid:thread as the holder itself has noted (``told``), else the name of its session; and the server's
        description."""
        if not self.pid or self.pid == "0":
            return PREPARED
        ours = OUR_APPLICATION.match(self.application or "")
        holder = readable(told) if told else ours.group(1) if ours else self.application
        server = f"{self.user or 'unknown'} at {self.address or 'local'}, server process {self.pid}"
        return f"{holder}, {server}" if holder else server


class Held(NamedTuple):
    """One held lock in the statement's result; times in microseconds since 1970."""

    kind: str
    key: str
    shared: bool
    pid: str | None
    name: str | None
    since: int | None
    noted: int | None
    told: str | None
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
    """The locks, from the one row of the statement."""
    total, matching, held, others, queues = row
    sessions = {
        pid: (count, [(key, readable(name) if name else key) for key, name in some])
        for pid, count, some in _list(others)
    }
    waiting = {key: tuple(Server(*session).described() for session in some) for key, some in _list(queues)}
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
    """``count`` is how many locks the session holds, ``beside`` some of them."""
    more = {
        "last_statement": lock.changed,
        "backend_start": lock.began,
        "noted": lock.noted and str(lock.noted),
        "also_holds": others_of(beside, count, lock.key),
    }
    details = {"pid": lock.pid, "application_name": lock.application or ""} if lock.pid else {}
    return LockInfo(
        backend=alias,
        key=lock.key,
        name=None if lock.name is None else readable(lock.name),
        shared=lock.shared,
        holder=lock.server.described(lock.told),
        acquired_at=_moment(lock.since),
        waiters=lock.waiters,
        waiting=waiting,
        details=details | {key: value for key, value in more.items() if value},
    )


def _blocking(alias: str, lock: Held) -> LockInfo:
    """A lock on a table or its rows."""
    session = f"{lock.user or 'unknown'} at {lock.address or 'local'}, server process {lock.pid}, {lock.application}"
    details = {"kind": lock.kind, "pid": lock.pid, "mode": lock.mode, "blocks": lock.blocks}
    return LockInfo(
        backend=alias,
        key=lock.key,
        name=lock.name,
        holder=PREPARED if lock.pid == "0" else session,
        acquired_at=_moment(lock.since),
        waiters=lock.waiters,
        details={key: value or "" for key, value in details.items()},
    )


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1_000_000, UTC)


def breaking(info: LockInfo) -> bytes | None:
    """The statement that ends the session of ``info`` if it still holds the lock; None if ``info`` has no session."""
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
