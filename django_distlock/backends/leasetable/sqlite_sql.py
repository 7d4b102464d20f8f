"""The tables and statements of the lease file. Times are microseconds since 1970."""

from __future__ import annotations

VERSION = 1
SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS lease (
        digest BLOB PRIMARY KEY, alias TEXT NOT NULL, name TEXT NOT NULL, token TEXT NOT NULL, fence INTEGER NOT NULL,
        acquired_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, holder TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS ticket (
        digest BLOB NOT NULL, place INTEGER NOT NULL, token TEXT NOT NULL, seen INTEGER NOT NULL, holder TEXT,
        PRIMARY KEY (digest, place)
    ) WITHOUT ROWID
    """,
    f"PRAGMA user_version = {VERSION}",
)
# Files of before have tickets without it. It is no new format: who does not know the column need not.
HAS_HOLDER = "SELECT 1 FROM pragma_table_info('ticket') WHERE name = 'holder'"
ADD_HOLDER = "ALTER TABLE ticket ADD COLUMN holder TEXT"

# The fence is the clock, which is nearly always above the last one, so it need not be read back. RETURNING with a
# SELECT would cost more than the write itself, and so would reading the table that is written; and SQLite has RETURNING
# only since 3.35.
TAKE = """
INSERT INTO lease (digest, alias, name, token, fence, acquired_at, expires_at, holder)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
WHERE NOT EXISTS (SELECT 1 FROM ticket WHERE digest = ?1 AND place < ?9 AND seen > ?10)
ON CONFLICT (digest) DO UPDATE SET
    token = excluded.token, fence = excluded.fence, acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at, holder = excluded.holder, alias = excluded.alias
WHERE (token = '-' OR token = excluded.token OR expires_at <= ?6) AND fence < excluded.fence
"""
LAST = "SELECT fence, token FROM lease WHERE digest = ?1 AND (token = '-' OR token = ?3 OR expires_at <= ?2)"
GIVE = "UPDATE lease SET token = '-', expires_at = ?3 WHERE digest = ?1 AND token = ?2 AND expires_at > ?3"
BREAK = "UPDATE lease SET token = '-', expires_at = ?3 WHERE digest = ?1 AND fence = ?2 AND expires_at > ?3"
EXTEND = "UPDATE lease SET expires_at = ?3 WHERE digest = ?1 AND token = ?2 AND expires_at > ?4"
HOLDS = "SELECT 1 FROM lease WHERE digest = ?1 AND token = ?2 AND expires_at > ?3"
LAST_PLACE = "SELECT coalesce(max(place), 0), count(*) FROM ticket WHERE digest = ?1"
JOIN = "INSERT INTO ticket (digest, place, token, seen, holder) VALUES (?1, ?2, ?3, ?4, ?5)"
LOOK = """
SELECT lease.token, lease.fence,
       (SELECT count(*) FROM ticket WHERE digest = ?1 AND place < ?3 AND seen > ?4),
       (SELECT place FROM ticket WHERE digest = ?1 AND place = ?3 AND token = ?5)
FROM (SELECT 1) LEFT JOIN lease ON lease.digest = ?1 AND lease.expires_at > ?2 AND lease.token <> '-'
"""
REFRESH = "UPDATE ticket SET seen = ?4 WHERE digest = ?1 AND place = ?2 AND token = ?3"
LEAVE = "DELETE FROM ticket WHERE digest = ?1 AND (token = ?2 OR seen < ?3)"
ROWS = """
SELECT lower(hex(l.digest)), l.name, l.token, l.fence, l.acquired_at, l.expires_at, l.holder, t.token, t.holder
FROM lease l LEFT JOIN ticket t ON t.digest = l.digest AND t.seen > ?2
WHERE l.alias = ?1 AND l.expires_at > ?3 AND l.token <> '-' ORDER BY l.acquired_at, l.digest, t.place
"""
LAST_OF_BATCH = "SELECT max(digest) FROM (SELECT digest FROM lease WHERE digest > ?1 ORDER BY digest LIMIT ?2)"
# A fence that is still to come, because the clock was set back, has to be remembered.
PRUNE = "DELETE FROM lease WHERE digest > ?1 AND digest <= ?2 AND expires_at < ?3 AND fence < ?4"
PRUNE_TICKETS = "DELETE FROM ticket WHERE seen < ?1"
