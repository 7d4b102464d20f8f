"""Who is asking: the one place that decides whether two calls come from the same execution context (rule R2).

A thread id is not identity, because two tasks share the thread of ``sync_to_async``. A context variable is not either,
because every child task inherits a copy. What identifies a context is

* the running asyncio task, or else the thread;
* in code that a task *awaits* through ``sync_to_async``: that task, found by looking for the task whose chain of awaits
  ends in this very call;
* in a task that ``async_to_sync`` made: whoever called ``async_to_sync``.

If the awaiting task cannot be found, the call is a context of its own. The search reads three names inside asgiref
(``SyncToAsync.thread_handler``, ``AsyncToSync.main_wrap`` and their arguments); tests pin them against asgiref's lowest
and newest version.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync, SyncToAsync

if TYPE_CHECKING:
    from types import FrameType

_WORKER = SyncToAsync.thread_handler.__code__
_AWAITER = SyncToAsync.__call__.__code__
_BRIDGE = AsyncToSync.main_wrap.__code__
_CALLER = AsyncToSync.__call__.__code__

# Looks, a tenth of a millisecond apart, for a task that is just about to wait for its worker.
_PATIENCE = 2000

_last = threading.local()


def current() -> object:
    """The identity of the calling context; compare with ``is``.

    A thread, a task, or an object that lives as long as one call of ``sync_to_async``.
    """
    # asyncio.current_task() would raise and catch an error where no event loop runs
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return _of_task(task)
    # asgiref leaves this mark on every thread on which it ever ran something; elsewhere no frame need be looked at
    if getattr(SyncToAsync.threadlocal, "main_event_loop_pid", None) is None:
        return threading.current_thread()
    return _of_frame(sys._getframe(1), threading.current_thread())


def _of_task(task: asyncio.Task[Any]) -> object:
    """The task itself, or the caller of async_to_sync if that made it."""
    coroutine: Any = task.get_coro()
    candidate: Any
    for candidate in (coroutine, getattr(coroutine, "cr_await", None)):
        if getattr(candidate, "cr_code", None) is _BRIDGE and candidate.cr_frame is not None:
            return _of_bridge(candidate.cr_frame.f_locals["call_result"]) or task
    return task


def _of_bridge(call_result: object) -> object | None:
    """Find the thread that waits in async_to_sync for ``call_result``."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is _CALLER and frame.f_locals.get("call_result") is call_result:
                thread = threads.get(ident)
                return None if thread is None else _of_frame(frame, thread)
            frame = frame.f_back
    return None


def _of_frame(start: FrameType, thread: threading.Thread) -> object:
    """Walk outwards from ``start``: the task that awaits this call of sync_to_async, or else ``thread``."""
    frame: FrameType | None = start
    while frame is not None:
        if frame.f_code is _WORKER:
            return _of_worker(frame)
        frame = frame.f_back
    return thread


def _of_worker(frame: FrameType) -> object:
    """The context on whose behalf asgiref's worker runs ``frame``.

    ``child`` is made anew by each call of sync_to_async, so it tells two calls of one function apart.
    """
    arguments = frame.f_locals
    child = arguments["args"][0]
    if getattr(_last, "child", None) is child:
        return _last.owner
    task = _awaiting(arguments["loop"], child)
    owner = child if task is None else _of_task(task)
    _last.child, _last.owner = child, owner
    return owner


def _awaiting(loop: asyncio.AbstractEventLoop, child: object) -> asyncio.Task[Any] | None:
    """The task of ``loop`` whose chain of awaits reaches the call of sync_to_async that made ``child``.

    The worker can be here before that task has come to rest; its chain is not to be seen until then.
    """
    for _ in range(_PATIENCE):
        task = _resting(loop, child)
        if task is not None:
            return task
        if not _still_running(child):
            return _resting(loop, child)  # it may have come to rest between the two looks
        time.sleep(0.0001)
    return None


def _resting(loop: asyncio.AbstractEventLoop, child: object) -> asyncio.Task[Any] | None:
    for task in asyncio.all_tasks(loop):
        link: Any = task.get_coro()
        while link is not None:
            if (
                getattr(link, "cr_code", None) is _AWAITER
                and link.cr_frame is not None
                and link.cr_frame.f_locals.get("child") is child
            ):
                return task
            link = getattr(link, "cr_await", None) or getattr(link, "gi_yieldfrom", None)
    return None


def _still_running(child: object) -> bool:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is _AWAITER and frame.f_locals.get("child") is child:
                return True
            frame = frame.f_back
    return False


def alive(owner: object) -> bool:
    """Can ``owner`` still do something? A finished task and a dead thread cannot."""
    if isinstance(owner, threading.Thread):
        return owner.is_alive()
    if isinstance(owner, asyncio.Future):
        return not owner.done()
    return True
