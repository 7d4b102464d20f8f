"""The questions of `distlock doctor` to a MySQL or MariaDB server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django_distlock.backends.sessions.session import ServerError
from django_distlock.records import Finding

from .introspection import MYSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.backends.sessions.session import Ask

FACTS = b"SELECT VERSION(), @@max_connections, @@global.read_only, @@global.wait_timeout"
USED = b"SHOW GLOBAL STATUS LIKE 'Threads_connected'"
GRANTS = b"SHOW GRANTS"
# MySQL only; a single primary is listed as one member
GROUP = b"SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
USER_LOCKS_MARIADB = b"SELECT COUNT(*) FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock'"
USER_LOCKS_MYSQL = (
    b"SELECT COUNT(*) FROM (" + MYSQL.encode() + b") l"
    b" UNION ALL SELECT 1 / (ENABLED = 'YES') FROM performance_schema.setup_instruments"
    b" WHERE NAME = 'wait/lock/metadata/sql/mdl'"
)


GLOBAL = re.compile(r"GRANT (.+?) ON \*\.\* TO ")
# MariaDB 12 answers with words.
WRITABLE = ("0", "OFF")


def findings(ask: Ask, wait_sessions: int) -> Iterator[Finding]:
    """``ask`` returns the rows of a statement."""
    version, connections, read_only, idle = ask(FACTS)[0]
    mariadb = "MARIADB" in _text(version).upper()
    yield Finding("info", f"{'MariaDB' if mariadb else 'MySQL'} {_text(version)}, wait_timeout {idle} s.")
    yield from of_role(read_only, _asked(ask, GROUP))
    shown = _asked(ask, USER_LOCKS_MARIADB if mariadb else USER_LOCKS_MYSQL)
    yield from of_listing(mariadb, shown, _asked(ask, GRANTS))
    used = _asked(ask, USED)
    wanted = 1 + wait_sessions
    if used and connections - int(_text(used[0][1])) < wanted:
        yield Finding(
            "warning",
            f"{_text(used[0][1])} of {connections} connections are in use; one process takes up to {wanted} for this "
            "alias, and one for each lock that it holds after a wait.",
            "Raise max_connections, or lower wait_sessions or the number of processes.",
        )


def of_role(read_only: object, members: list[Any]) -> Iterator[Finding]:
    """Findings about a replica, or a member of a group: its named locks are not those of the other servers."""
    if _text(read_only).upper() not in WRITABLE:
        yield Finding(
            "warning",
            "This server is read-only, perhaps a replica: its named locks are not those of the primary.",
            "Let the alias, or OPTIONS['session_database'], point to the primary.",
        )
    if members and members[0][0] > 1:
        yield Finding(
            "warning",
            f"The server belongs to a group of {members[0][0]}: named locks are those of one member only.",
            "Let every process connect to the same member, or take leasetable.LeaseTableBackend.",
        )


def of_listing(mariadb: bool, shown: list[Any], grants: list[Any]) -> Iterator[Finding]:
    """Findings about what `held_locks` can see."""
    seen = bool(shown) if mariadb else looks(shown)
    if not seen:
        cure = (
            "INSTALL SONAME 'metadata_lock_info', and the privilege PROCESS"
            if mariadb
            else "enable the instrument wait/lock/metadata/sql/mdl, and GRANT SELECT ON performance_schema.*"
        )
        yield Finding(
            "warning",
            "The server does not show its named locks: only those whose names are noted are listed, and no waiters.",
            f"As administrator: {cure}.",
        )
    found = filter(None, (GLOBAL.match(_text(row[0]).upper()) for row in grants))
    privileges = {each.strip() for match in found for each in match[1].split(",")}
    if not privileges & {"PROCESS", "ALL PRIVILEGES"}:
        # MySQL's own tables name other accounts
        unseen = "other accounts are not named, and those that wait are" if mariadb else "those that wait for a row are"
        yield Finding(
            "info" if seen and not mariadb else "warning",
            f"Without the privilege PROCESS {unseen} not listed.",
            "GRANT PROCESS ON *.* TO the account of the alias.",
        )


def looks(shown: list[Any]) -> bool:
    """Does MySQL show user-level locks? With performance_schema off there is one row, else a NULL if its
    instrument is off."""
    return len(shown) > 1 and shown[1][0] is not None


def _asked(ask: Ask, sql: bytes) -> list[Any]:
    """No rows if the server has no such table, or refuses us the privilege."""
    try:
        return ask(sql)
    except ServerError:
        return []


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
