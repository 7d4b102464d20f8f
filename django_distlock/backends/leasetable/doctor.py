"""The system check of a lease table, and what `distlock doctor` asks its database."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError, connections

from django_distlock.backends.side_connection import Silent, ask
from django_distlock.records import Finding
from django_distlock.schema import NOW

from .sqlite import SqliteStore, database_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

# Seconds by which the clocks may differ without a warning.
SKEW = 2.0
# One line for each mount that this process sees; the fifth field is where it is.
# https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
MOUNTS = "/proc/self/mountinfo"


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
        # not on Django's connection: the command would wait for ever for a server that hangs
        yield from ask(database, _server)
    except Silent as error:
        yield Finding("error", str(error))
    except DatabaseError as error:
        yield Finding("error", f"The database {database!r} does not answer: {type(error).__name__}.")


def _server(connection: BaseDatabaseWrapper) -> list[Finding]:
    version = ".".join(map(str, connection.get_database_version()))
    found = [Finding("info", f"{connection.display_name} {version}.")]
    if connection.vendor in NOW:
        with connection.cursor() as cursor:
            began = time.time()
            cursor.execute(f"SELECT {NOW[connection.vendor]}")
            skew = cursor.fetchone()[0] / 1e6 - (began + time.time()) / 2
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


def check(alias: str, database: str) -> list[CheckMessage]:
    """Warn of a database file with a second name: processes that use it look for the leases elsewhere."""
    path = database_path(connections.settings[database]["NAME"])
    if path is None:
        return []
    try:
        names = os.stat(path).st_nlink
    except OSError:
        return []  # it does not exist yet
    if names > 1:
        why = f"has {names} names (hard links)"
    elif mounted_alone(path, _mounts()):
        why = "is mounted by itself, without its directory"
    else:
        return []
    return [
        Warning(
            f"DISTLOCK[{alias!r}]: the database {path} {why}. Its leases are in a file beside it: processes "
            "that use another name of the database do not see them, and both may hold the same lock.",
            hint="Use one name in all processes: a symbolic link in place of a hard link, a mount of the directory in "
            "place of the file.",
            id="distlock.W046",
        )
    ]


def _mounts() -> str:
    try:
        return Path(MOUNTS).read_text("utf-8", "surrogateescape")
    except OSError:
        return ""  # not Linux


def mounted_alone(path: str, mounts: str) -> bool:
    """Is the file itself a mount point, as after `docker run -v FILE:FILE`?"""
    # spaces, tabs, newlines and backslashes are written in octal
    octal = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in path)
    return any(line.split(" ")[4:5] == [octal] for line in mounts.splitlines())
