"""Work that is left to another thread, because whoever finds it may not wait, or may have any mutex.

That is what an exception of a signal (KeyboardInterrupt, a task's soft time limit) has cut off half way; what a
generator or a coroutine leaves that is being closed, perhaps by the garbage collector in the middle of anything; and
what only a wait for a server would end on the thread of an event loop. The keepalive thread takes it from here and does
each job in a thread of its own.
"""

from __future__ import annotations

import queue
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from .fork import Order, at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[[], object]

# re-entrant by design, unlike every mutex: the collector may run in the middle of a put()
_jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()


def leave(job: Job | None) -> None:
    """Have ``job`` done soon. None only wakes whoever takes the jobs."""
    _jobs.put(job)


def take(timeout: float) -> Job | None:
    """The next job; None if there is none within so many seconds, or if :func:`leave` was called with None."""
    try:
        return _jobs.get(timeout=timeout)
    except queue.Empty:
        return None


def empty() -> bool:
    """Is nothing left to be done?"""
    return _jobs.empty()


def now_or_later(function: Callable[..., object], *args: Any) -> None:
    """Call ``function`` to clean up: at once, or later, if a generator or a coroutine is being closed here."""
    if isinstance(sys.exc_info()[1], GeneratorExit):
        leave(partial(function, *args))
    else:
        function(*args)


def _after_fork() -> None:
    """In the child: what is left here belongs to the parent."""
    global _jobs
    _jobs = queue.SimpleQueue()


at_fork(Order.PRIMITIVES, child=_after_fork)
