"""Processes of the private servers: start one detached, know it again later, signal it with all its children.

A process is known by its id *and* its start time, so that a recycled id is never taken for ours.  Needs /proc (Linux).
"""

from __future__ import annotations

import os
import pwd
import random
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

POLL_SECONDS = 0.02
SHARES = 16  # of the ports, one for each test process
_drawn: set[int] = set()  # ports that this process was given


class ServicesError(RuntimeError):
    """The private servers cannot be used; the message says why and what to do."""


def _fields(stat: Path) -> list[str]:
    """From the state on; none if the process or the thread has ended."""
    try:
        text = stat.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """The start time of a live process in clock ticks after boot, None if there is none (a zombie is dead)."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def process_tree(*roots: int) -> list[int]:
    """`roots` and all their descendants, parents first; a root that descends from another one is there twice."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        if fields := _fields(entry):
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    tree = list(roots)
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    if number == signal.SIGSTOP:
        wait_stopped(pids)


def wait_stopped(pids: Sequence[int]) -> None:
    """After SIGSTOP. One thread gets the signal, and the others go on until that one has had a processor: on a busy
    machine, a server of many threads answers for a while after it was stopped."""
    if not wait_until(lambda: all(map(_stopped, pids)), 10):
        raise ServicesError(f"not each of the processes {pids} has stopped")


def _stopped(pid: int) -> bool:
    """Whether each of its threads has stopped or ended."""
    states = (_fields(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(fields[0] in "TtZX" for fields in states if fields)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def end_process(pid: int, number: int, seconds: float = 20) -> None:
    """Send `number` and wait until the process and its children are gone; what is left after `seconds` is killed."""
    tree = process_tree(pid)

    def gone() -> bool:
        return all(start_time(member) is None for member in tree)

    if number == signal.SIGKILL:
        signal_all(tree, number)
    else:
        signal_all([pid], number)
    signal_all(tree, signal.SIGCONT)  # a stopped process would never see any other signal than SIGKILL
    if not wait_until(gone, seconds):
        signal_all(tree, signal.SIGKILL)
        if not wait_until(gone, 5):
            raise ServicesError(f"process {pid} does not end, not even on SIGKILL")


def account(name: str) -> pwd.struct_passwd | None:
    """The unprivileged account a server runs as: PostgreSQL and pgbouncer refuse root.  None: we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def run_as(user: pwd.struct_passwd | None) -> dict[str, object]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def start_detached(command: Sequence[str], user: pwd.struct_passwd | None, directory: Path, log: Path) -> int:
    """Start a server that outlives us and is nobody's child; its process id.

    The shell in between ends at once, so a caller that lives on (pytest) has neither a child nor a zombie of it.
    """
    shell = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
    done = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", str(log), *command],
        cwd=directory, env=server_environment(), start_new_session=True, check=True, capture_output=True, text=True,
        timeout=30, **run_as(user),
    )  # fmt: skip
    return int(done.stdout)


def server_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the caller's PG*, MYSQL* or locale variables reaches a server or its client."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC", **(extra or {})}


def free_port() -> int:
    """A free loopback port below the range outgoing connections draw from: a restarted server finds it free again.

    Test processes that start servers at the same time draw from different ones, and none draws one a second time: a
    free port is not bound yet, and of two Redis servers on one port the second ends while the first answers for both.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # gw0, gw1, ...
    share = 1 + int(worker.removeprefix("gw")) if worker else 0
    ours = set(range(20_000 + share % SHARES, 32_000, SHARES))
    ports = ours - _drawn or ours
    for port in random.sample(sorted(ports), len(ports)):
        if port_is_free(port):
            _drawn.add(port)
            return port
    raise ServicesError("no free port between 20000 and 32000 on 127.0.0.1")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def private_directory(name: str) -> Path:
    """A directory of ours outside the repository, which a server's account perhaps may not read.

    Its name can be foreseen, so one that somebody else made, or a link, is refused.
    """
    root = next((base for base in (tempfile.gettempdir(), "/var/tmp") if _passable(Path(base))), None)
    if root is None:
        raise ServicesError(f"the servers' accounts cannot enter {tempfile.gettempdir()}; set TMPDIR to a better place")
    path = Path(root) / name
    path.mkdir(mode=0o711, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ServicesError(f"{path} belongs to somebody else; remove it or set TMPDIR")
    path.chmod(0o711)
    return path


def _passable(base: Path) -> bool:
    if os.geteuid() != 0:
        return os.access(base, os.W_OK | os.X_OK)
    resolved = base.resolve()
    return all(part.stat().st_mode & stat.S_IXOTH for part in (resolved, *resolved.parents))
