"""The SQL of the table of edit locks, for PostgreSQL, MySQL, MariaDB and SQLite.

Parameters are named. ``{now}``, the present time of the database, is filled in by ``EDIT_LOCKS.text_for``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.storage import dialect
from django_distlock.storage.table import LeaseTable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_editlease"
EDIT_LOCKS = LeaseTable(TABLE, "edit locks")
COLUMNS = (
    "digest, model, object_pk, lease, principal, tab, label, fence, writes, since, seen, active_at, expires_at, "
    "reserved, previous, ended, changed_at, changed_by"
)
READ = f"{COLUMNS}, {{now}}"
SELECT = f"SELECT {READ} FROM {TABLE}"  # noqa: S608
FREE = "(lease = '' OR expires_at <= {now})"
# Values of ``reserved``: the page has gone, or has just saved and may go. The tab has some seconds to come back.
LEFT, SAVED = 1, 2
# Conditions on the row, under which a verb gets it.
CLAIM = f"({FREE} OR principal = %(principal)s)"
ADOPT = f"({FREE} OR (principal = %(principal)s AND lease IN (%(lease)s, %(former)s)))"
TAKEOVER = "1 = 1"
# MySQL assigns from left to right: what is compared comes last.
HOLD = """
previous = CASE WHEN lease IN ('', %(lease)s) THEN previous ELSE lease END,
ended = CASE WHEN lease IN ('', %(lease)s) THEN ended WHEN expires_at <= {now} THEN 'expired' ELSE %(reason)s END,
fence = CASE WHEN lease = %(lease)s THEN fence ELSE fence + 1 END,
since = CASE WHEN lease <> '' AND expires_at > {now} AND principal = %(principal)s THEN since ELSE {now} END,
principal = %(principal)s, tab = %(tab)s, label = %(label)s, seen = {now}, active_at = {now} - %(idle)s,
expires_at = {now} + %(ttl)s, reserved = %(reserved)s, lease = %(lease)s
"""
# The names stay with an expired lease, and go with one that was given back.
DROP = """
previous = lease, ended = %(reason)s, principal = '', tab = '', label = '', reserved = 0, seen = {now},
expires_at = {now}, lease = ''
"""
COUNT = "writes = writes + 1, changed_at = {now}, changed_by = %(label)s"
RENEW = "seen = {now}, active_at = {now} - %(idle)s, expires_at = {now} + %(ttl)s, reserved = 0"
RESERVE = """
seen = {now}, reserved = %(reserved)s,
expires_at = CASE WHEN expires_at < {now} + %(ttl)s THEN expires_at ELSE {now} + %(ttl)s END
"""
MINE = "lease = %(lease)s AND lease <> '' AND (%(principal)s = '' OR principal = %(principal)s)"
NEW_ROW = "{now}, {now}, {now}, {now}, {now}, {now} + %(ttl)s, %(reserved)s, '', '', 0, ''"
EMPTY_ROW = "'', '', '', '', {now}, {now}, {now}, {now}, {now}, {now}, 0, '', '', 0, ''"
HELD_ROW = f"%(digest)s, %(model)s, %(pk)s, %(lease)s, %(principal)s, %(tab)s, %(label)s, {NEW_ROW}"


def update(connection: BaseDatabaseWrapper, assignments: str, condition: str) -> str:
    """An UPDATE of one row that does not wait for its lock, where the database can do so in one statement."""
    if connection.vendor == "postgresql":
        found = f"SELECT digest FROM {TABLE} WHERE digest = %(digest)s AND {condition} FOR UPDATE SKIP LOCKED"  # noqa: S608
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = ({found}) RETURNING {READ}"  # noqa: S608
    else:
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = %(digest)s AND {condition}"  # noqa: S608
        text += f" RETURNING {READ}" if dialect.returns_updated(connection) else ""
    return EDIT_LOCKS.text_for(connection, text)


def insert(connection: BaseDatabaseWrapper) -> str:
    """An INSERT of a held row, unless the row exists."""
    return EDIT_LOCKS.text_for(connection, dialect.insert(connection, TABLE, COLUMNS, HELD_ROW))


def upsert_and_lock(connection: BaseDatabaseWrapper, count: int) -> str:
    """Make the rows of ``count`` objects that have none, and lock all of them in the order given.

    Returns them where the database can do that in the same statement.
    """
    rows = ", ".join(f"(%s, %s, %s, {EMPTY_ROW})" for _ in range(count))
    if connection.vendor == "mysql":
        text = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {rows} ON DUPLICATE KEY UPDATE digest = VALUES(digest)"  # noqa: S608
    else:
        text = (
            f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {rows} "  # noqa: S608
            "ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest"
        )
    return EDIT_LOCKS.text_for(connection, text)
