"""Keep client and server on one CPU, so that the figures do not depend on where the scheduler puts them.

Unpinned, the same code measured 75 to 218 microseconds within one run: it depends on whether the two share a CPU.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

SUPPORTED = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()


@contextlib.contextmanager
def pinned(server_pids: Callable[[], list[int]]) -> Generator[bool]:
    """Pin this process and the server to one CPU while the block runs; yield whether the server could be pinned.

    ``server_pids`` is called again at the end, because sessions that were opened meanwhile inherited the pinning.
    """
    if not SUPPORTED:
        yield False
        return
    before = os.sched_getaffinity(0)
    one = {max(before)}
    pids = server_pids()
    try:
        allowed = [_pin(pid, one) for pid in (os.getpid(), *pids)]
        yield bool(pids) and all(allowed)
    finally:
        for pid in (os.getpid(), *pids, *server_pids()):
            _pin(pid, before)


def _pin(pid: int, cpus: set[int]) -> bool:
    """Pin every thread of a process and return whether it was allowed; what has ended meanwhile is passed over."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True
