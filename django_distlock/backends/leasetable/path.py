"""Where a SQLite database is, so that all who use it find the same leases; and a check for what cannot be found out."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.core.checks import CheckMessage, Warning
from django.db import connections

# One line for each mount that this process sees; the fifth field is where it is.
# https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
MOUNTS = "/proc/self/mountinfo"


def database_path(name: object) -> str | None:
    """The file of a SQLite database; None: in memory. Its name may be a URI, as for Django.

    Links are resolved, as SQLite itself does before it names its journal, also where they lead to no file yet.
    """
    text = os.fspath(name) if isinstance(name, os.PathLike) else str(name)
    if text == ":memory:" or "mode=memory" in text:
        return None
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
        if text == ":memory:":
            return None
    return os.path.realpath(text)


def check(alias: str, database: str) -> list[CheckMessage]:
    """Has the file a second name, beside which other processes would look for the leases?"""
    path = database_path(connections.settings[database]["NAME"])
    if path is None:
        return []
    try:
        names = os.stat(path).st_nlink
    except OSError:
        return []  # there is none yet
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
