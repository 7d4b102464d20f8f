"""What `distlock doctor` asks the database of a lease table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.db import DatabaseError

from django_distlock.backends.side_connection import Silent, ask
from django_distlock.records import Finding

from .sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

CLOCKS = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT UNIX_TIMESTAMP(NOW(6))",
}
# Seconds by which two clocks may differ without a word.
SKEW = 2.0


def findings(store: object, database: str) -> Iterator[Finding]:
    if isinstance(store, SqliteStore):
        path = store.file().path
        if path == ":memory:":
            yield Finding(
                "warning",
                "The database is in memory, and so are the leases: no other process sees them.",
                "Take a database in a file.",
            )
        else:
            yield Finding("info", f"SQLite; the leases are in {path}, which excludes processes of this host only.")
        return
    try:
        # on a connection of its own: a server that hangs would keep the command for ever
        yield from ask(database, _server)
    except Silent as error:
        yield Finding("error", str(error))
    except DatabaseError as error:
        yield Finding("error", f"The database {database!r} does not answer: {type(error).__name__}.")


def _server(connection: BaseDatabaseWrapper) -> list[Finding]:
    version = ".".join(map(str, connection.get_database_version()))
    found = [Finding("info", f"{connection.display_name} {version}.")]
    if connection.vendor in CLOCKS:
        with connection.cursor() as cursor:
            began = time.time()
            cursor.execute(CLOCKS[connection.vendor])
            skew = float(cursor.fetchone()[0]) - (began + time.time()) / 2
        if abs(skew) > SKEW:
            found.append(skewed(skew))
    return found


def skewed(seconds: float) -> Finding:
    direction = "ahead of" if seconds > 0 else "behind"
    return Finding(
        "warning",
        f"The server's clock is {abs(seconds):.1f} s {direction} this host's. Leases are timed by the server's, and no "
        "lock suffers; but times in lists and logs do not agree.",
        "Let both follow the same time servers.",
    )
