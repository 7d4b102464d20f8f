"""What /proc tells about processes: their sockets, their files, their parents. Empty where there is no /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
LISTENING = "0A"


def listeners(port: int, program: str) -> list[int]:
    """Return the processes that listen on a TCP port, from the inodes of its sockets, if they are that program.

    In front of a container it is another one, which is of no use.
    """
    wanted = {inode for number, state, inode in sockets(os.getpid()) if number == port and state == LISTENING}
    return [pid for pid in all_pids() if command(pid) == program and wanted & inodes(pid)]


def sockets(pid: int) -> Iterator[tuple[int, str, str]]:
    """Yield local port, state and inode of every TCP socket in the process' network."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                yield int(fields[1].rpartition(":")[2], 16), fields[3], fields[9]


def inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open."""
    return {target[8:-1] for target in descriptors(pid) if target.startswith("socket:[")}


def descriptors(pid: int) -> list[str]:
    """Return what every open file descriptor of a process points to."""
    targets = []
    with contextlib.suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                targets.append(os.readlink(descriptor))
    return targets


def all_pids() -> list[int]:
    """Return every process."""
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return []


def command(pid: int) -> str:
    """Return the name of a process' program."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def parent(pid: int) -> int:
    """Return the process that started this one; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
