"""Keep client and server on one CPU, so that the figures do not depend on where the scheduler puts them.

Unpinned, the same code measured 75 to 218 microseconds within one run: it depends on whether the two share a CPU.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable


@contextlib.contextmanager
def pinned(server_pids: Callable[[], list[int]]) -> Generator[bool]:
    """Pin this process and the server to one CPU while the block runs; yield whether the server could be pinned.

    ``server_pids`` is called again at the end, because sessions that were opened meanwhile inherited the pinning.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before, pids = os.sched_getaffinity(0), server_pids()
    try:
        allowed = pin([os.getpid(), *pids], {max(before)})
        yield bool(pids) and allowed
    finally:
        pin([os.getpid(), *pids, *server_pids()], before)


def pin(pids: Iterable[int], cpus: set[int]) -> bool:
    """Pin every thread of the processes, and return whether that was allowed; what has ended is passed over."""
    try:
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), cpus)
    except PermissionError:
        return False
    return True
