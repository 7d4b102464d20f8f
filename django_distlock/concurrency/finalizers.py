"""What the cyclic garbage collector wants to release.

It runs at any allocation, also in the midst of our own bookkeeping, and closes generators and coroutines that are in
a ``with lock:``. Their clean-up would wait for a mutex that its own thread has. So whatever is released from within
a collection is done by another thread, a moment later; nobody waits for it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("django_distlock.locks")

# The collector calls back with ("start", facts) and ("stop", facts), where ``facts`` is a new dict each time. These
# callbacks are functions in C on purpose: in one in Python a Ctrl-C that came during the collection would get lost.
# The phase that came last is the last key; whoever has its ``facts`` in _here is the thread that collects.
_phases: dict[str, object] = {}
_here = threading.local()
_callbacks: list[Any] = [_phases.pop, _phases.__setitem__, _here.__setattr__]
gc.callbacks += _callbacks


@atexit.register
def _stop_listening() -> None:
    """At the exit of the interpreter gevent's thread-locals raise, and each collection would print that."""
    for callback in _callbacks:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)


# re-entrant by design, unlike every mutex
_jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
_working = threading.Lock()


def collecting() -> bool:
    """Does the collector run in this thread, so that the thread may have any mutex?"""
    return list(_phases)[-1:] == ["start"] and getattr(_here, "start", None) is _phases.get("start", _phases)


def later(function: Callable[..., object], *args: Any) -> None:
    """Call ``function`` in another thread, after everything that was left for later before it."""
    _jobs.put((function, args))
    with contextlib.suppress(RuntimeError):  # no thread to be had: done with the next one
        # not threading.Thread, whose start takes a mutex that this thread may have, too
        _thread.start_new_thread(_start, ())


def now_or_later(function: Callable[..., object], *args: Any) -> None:
    """Call ``function`` at once, unless the collector runs in this thread."""
    if collecting():
        later(function, *args)
    else:
        function(*args)


def _start() -> None:
    threading.Thread(target=_work, name="distlock-release", daemon=True).start()


def _work() -> None:
    with _working:
        while True:
            try:
                function, args = _jobs.get_nowait()
            except queue.Empty:
                return
            try:
                function(*args)
            except Exception as error:
                logger.warning("What the garbage collector released could not be cleaned up: %s", one_line(error))
            del function, args


def _after_fork() -> None:
    """In the child: what waits here is the parent's."""
    global _jobs, _working
    _jobs = queue.SimpleQueue()
    _working = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
