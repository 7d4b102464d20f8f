"""Who holds and who waits for the user-level locks of MySQL and MariaDB, as an operator sees it; their names; ending a
holder."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.backends.sessions.names import BATCH, TABLE, NotesSQL
from django_distlock.backends.text import SessionContents, readable
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.records import MOST_WAITING, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.keys import LockKey

# Two ways to see user-level locks: MariaDB's plugin METADATA_LOCK_INFO, and the performance schema of MySQL 8.
# Without the privilege PROCESS the process list has one's own connections only.
MARIADB = """
SELECT m.TABLE_SCHEMA AS lock_name, 'GRANTED' AS status, m.THREAD_ID AS ID, p.USER, p.HOST, p.TIME
FROM information_schema.METADATA_LOCK_INFO m LEFT JOIN information_schema.PROCESSLIST p ON p.ID = m.THREAD_ID
WHERE m.LOCK_TYPE = 'User lock'
UNION ALL
SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(INFO, '''', 2), '''', -1), 'PENDING', ID, USER, HOST, TIME_MS / 1000
FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND INFO LIKE 'SELECT GET\\\\_LOCK(%'
"""
# Its threads count whole seconds: how long one waits is told by its statement (TIMER_WAIT, in 10^-12 s).
MYSQL = """
SELECT m.OBJECT_NAME AS lock_name, m.LOCK_STATUS AS status, t.PROCESSLIST_ID AS ID, t.PROCESSLIST_USER AS USER,
       t.PROCESSLIST_HOST AS HOST, IF(m.LOCK_STATUS = 'PENDING', COALESCE(
           (SELECT MAX(s.TIMER_WAIT) / 1e12 FROM performance_schema.events_statements_current s
            WHERE s.THREAD_ID = t.THREAD_ID), t.PROCESSLIST_TIME), t.PROCESSLIST_TIME) AS TIME
FROM performance_schema.metadata_locks m JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE m.OBJECT_TYPE = 'USER LEVEL LOCK'
"""
# A note is of the connection that it was written for.
NAMED = """
SELECT l.*, n.name, n.other, IF(n.session = l.ID, n.since, NULL), IF(n.session = l.ID, n.holder, NULL)
FROM ({locks}) l LEFT JOIN {table} n
ON n.lock_key = CONVERT(l.lock_name USING ascii) COLLATE ascii_bin
"""
# Where neither is there, or allowed: what is held of the names that are noted.
NOTED = f"""
SELECT k.lock_key, NULL, k.ID, p.USER, p.HOST, p.TIME, k.name, k.other, IF(k.session = k.ID, k.since, NULL),
       IF(k.session = k.ID, k.holder, NULL)
FROM (SELECT n.*, IS_USED_LOCK(n.lock_key) AS ID FROM {TABLE} n) k
LEFT JOIN information_schema.PROCESSLIST p ON p.ID = k.ID WHERE k.ID IS NOT NULL
""".encode()  # noqa: S608 - a constant
# no such table, and no privilege
NO_SUCH_TABLE = 1146
NOT_TO_BE_SEEN = frozenset({NO_SUCH_TABLE, 1109, 1044, 1142, 1143, 1227})
# What LockKey.text looks like: nothing else goes into a statement.
IS_KEY = re.compile(r"[a-z0-9-]{1,64}")
IS_OURS = "IS_USED_LOCK('%s') = %d"
# A connection that gave the lock back and took it again has another note.
STILL = f" AND EXISTS (SELECT 1 FROM {TABLE} WHERE lock_key = '%s' AND session = %d AND since = %d)"  # noqa: S608
# MariaDB compares and ends in one statement; 1644 is its answer if the lock is not that session's.
COMPARE_AND = "BEGIN NOT ATOMIC IF {ours} THEN {then}; ELSE SIGNAL SQLSTATE '45000'; END IF; END"
# MySQL takes an expression for the connection, without tables; there is no connection 0.
KILL_IF = "KILL CONNECTION IF({ours}, {connection}, 0)"
NOT_OURS, NO_SUCH_CONNECTION = 1644, 1094
# KILL DENIED, and the privilege that MySQL 8 and MariaDB name
NOT_ALLOWED = frozenset({1095, 1227})


class Row(NamedTuple):
    """``status`` is None where the server tells who holds a lock, and not who waits for it."""

    name: str
    status: str | None
    connection: str
    user: str | None = None
    host: str | None = None
    seconds: str | None = None
    noted_name: str | None = None
    other: str | None = None
    since: str | None = None
    told: str | None = None

    @property
    def who(self) -> str:
        """host:pid:thread if the holder has said so, and what the server says."""
        account = f"{self.user}@{self.host}, " if self.user else ""
        server = f"{account}connection {self.connection}"
        return f"{readable(self.told)}, {server}" if self.told else server

    @property
    def acquired_at(self) -> datetime | None:
        return None if self.since is None else datetime.fromtimestamp(int(self.since) / 1_000_000, UTC)


def listing(mariadb: bool, named: bool) -> bytes:
    """The one statement that lists; ``named``: with the names, whose table may not be there."""
    locks = MARIADB if mariadb else MYSQL
    return (NAMED.format(locks=locks, table=TABLE) if named else locks).encode()


def ours(info: LockInfo) -> tuple[int, str, str] | None:
    """The connection that ``info`` shows, the condition that it holds the lock, and what goes on " AND " that it is the
    noted hold, if it is noted; None: it shows none."""
    connection, noted = info.details.get("connection", ""), info.details.get("noted", "")
    if not (connection.isdecimal() and (noted.isdecimal() or not noted)):
        return None
    if not IS_KEY.fullmatch(info.key):
        raise UnsupportedOperation(f"The lock {info.key!r} is not one of ours: some other program holds it.")
    still = STILL % (info.key, int(connection), int(noted)) if noted else ""
    return int(connection), IS_OURS % (info.key, int(connection)), still


def infos(alias: str, rows: Iterable[Sequence[str | None]]) -> list[LockInfo]:
    """The held locks; for each who waits, and what else its session holds."""
    held: list[Row] = []
    waiting: dict[str, list[Row]] = defaultdict(list)
    contents = SessionContents()
    for row in (Row(*each) for each in rows):  # type: ignore[arg-type]
        if row.status in ("GRANTED", None):
            held.append(row)
            contents.add(row.connection, row.name, None if row.noted_name is None else readable(row.noted_name))
        elif row.status == "PENDING":
            waiting[row.name].append(row)
    for queue in waiting.values():
        queue.sort(key=lambda row: -float(row.seconds or 0))
    return [_info(alias, row, waiting.get(row.name, ()), contents) for row in held]


def _info(alias: str, row: Row, waiting: Sequence[Row], contents: SessionContents) -> LockInfo:
    details = {
        "connection": row.connection,
        "idle_seconds": "" if row.seconds is None else f"{float(row.seconds):.0f}",
        "noted": row.since or "",
        "also_holds": contents.others(row.connection, row.name),
        "collision": readable(row.other or ""),
    }
    return LockInfo(
        backend=alias,
        key=row.name,
        name=None if row.noted_name is None else readable(row.noted_name),
        holder=row.who,
        acquired_at=row.acquired_at,
        waiters=None if row.status is None else len(waiting),
        waiting=tuple(waiter.who for waiter in waiting[:MOST_WAITING]),
        details={key: value for key, value in details.items() if value},
    )


class MySQLNotes(NotesSQL):
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    passing = frozenset({1205, 1213, 1020, 1317})
    deleted = (b"SELECT ROW_COUNT()",)

    def text(self, value: str) -> str:
        return f"CONVERT(X'{value.encode('ascii', 'replace').hex()}' USING ascii)"

    def key(self, key: LockKey) -> str:
        return key.text

    def write(self, rows: str) -> list[bytes]:
        statement = f"""
        INSERT INTO {TABLE} (lock_key, alias, name, other, seen_at, session, since, holder) VALUES {rows}
        ON DUPLICATE KEY UPDATE seen_at = VALUES(seen_at),
        other = IF(BINARY name = BINARY VALUES(name) AND alias = VALUES(alias), other, VALUES(name)),
        since = IF(VALUES(session) > 0, VALUES(since), since),
        holder = IF(VALUES(session) > 0, VALUES(holder), holder),
        session = CASE WHEN VALUES(session) > 0 THEN VALUES(session)
                       WHEN VALUES(session) = -session THEN 0 ELSE session END
        """  # noqa: S608 - literals of digits
        found = f"SELECT lock_key, alias, name, other FROM {TABLE} WHERE other <> ''"  # noqa: S608
        return [statement.encode(), found.encode()]

    def delete(self, condition: str) -> bytes:
        return f"DELETE FROM {TABLE} WHERE {condition} LIMIT {BATCH}".encode()  # noqa: S608 - as above
