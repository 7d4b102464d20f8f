"""Releases that the cyclic garbage collector asks for.

The collector runs at any allocation, even in the middle of our own bookkeeping, and closes generators and coroutines
that are inside a ``with lock:``. Their clean-up would wait for a mutex that its own thread has. So what is released
from within a collection is released by another thread, a moment later, without waiting for it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import gc
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from .fork import Order, at_fork
from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("django_distlock.locks")


class _Here(threading.local):
    """Does the collector run in this thread, so that the thread may have any mutex?"""

    collecting = False


here = _Here()


def _note_collection(phase: str, info: object) -> None:
    here.collecting = phase == "start"


gc.callbacks.append(_note_collection)
# At the exit of the interpreter gevent's thread-locals raise, and each collection would print that.
atexit.register(gc.callbacks.remove, _note_collection)

# re-entrant by design, unlike every mutex
_jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
_working = threading.Lock()


def later(function: Callable[..., object], *args: Any) -> None:
    """Call ``function`` in another thread, after the calls that were left for later before it."""
    _jobs.put((function, args))
    with contextlib.suppress(RuntimeError):  # no thread could be started: called with the next one
        # not threading.Thread, whose start takes a mutex that this thread may have, too
        _thread.start_new_thread(_start, ())


def now_or_later(function: Callable[..., object], *args: Any) -> None:
    """Call ``function`` at once, unless the collector runs in this thread."""
    if here.collecting:
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
    """In the child: the calls that wait here are the parent's."""
    global _jobs, _working
    _jobs = queue.SimpleQueue()
    _working = threading.Lock()


at_fork(Order.PRIMITIVES, child=_after_fork)
