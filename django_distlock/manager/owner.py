"""The execution context of a call: the one place that decides whether two calls come from the same caller (rule R2).

A thread id does not identify a caller, because two tasks share the thread of ``sync_to_async``. A context variable does
not either, because every child task inherits a copy. The context of a call is

* the running asyncio task, or else the thread;
* in code that a task *awaits* through ``sync_to_async``: that task, found by searching for the task whose chain of
  awaits ends in this very call;
* in a task that ``async_to_sync`` made: the caller of ``async_to_sync``.

If the awaiting task cannot be found, the call counts as a separate context. The search reads three functions of asgiref
(``SyncToAsync.thread_handler``, ``AsyncToSync.main_wrap`` and the ``new_loop_wrap`` around it), their arguments, and
the executors in which ``async_to_sync`` waits; tests pin them against asgiref's lowest and newest version.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Coroutine
from itertools import chain
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync, SyncToAsync
from django.core.exceptions import SynchronousOnlyOperation

from django_distlock.concurrency import clock
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_WORKER = SyncToAsync.thread_handler.__code__
_AWAITER = SyncToAsync.__call__.__code__
_BRIDGE = AsyncToSync.main_wrap.__code__
_CALLER = AsyncToSync.__call__.__code__
# since asgiref 3.9; before, the event loop was given main_wrap itself
_LOOP = next((const for const in _CALLER.co_consts if getattr(const, "co_name", "") == "new_loop_wrap"), object())


# What is read here of each of them. Without it two tasks would silently enter each other's locks.
_READ = {_WORKER: "args loop main_event_loop_pid", _AWAITER: "child", _BRIDGE: "call_result", _CALLER: "call_result"}
for _code, _names in _READ.items():
    if unknown := {*_names.split()} - {*_code.co_varnames, *_code.co_cellvars, *_code.co_names}:
        raise ImportError(f"This version of asgiref is not supported: {_code.co_name}() has no {unknown}.")

_WRAPPERS = frozenset({"coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"})

# Seconds until the awaiting task is suspended at the latest. It has only to return to its loop, but the system may be
# slow to let it.
_SEARCH = 5.0

_last = threading.local()


def current() -> object:
    """The identity of the calling context; compare with ``is``.

    A thread, a task, or an object that lives as long as one call of ``sync_to_async``.
    """
    # without an event loop asyncio.current_task() would raise and catch an error, which takes time
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return _of_task(task)
    # asgiref marks every thread in which it ever ran a function; without the mark no frame needs to be read. It is read
    # at each acquire, and a thread-local takes half a microsecond to say that it has no such attribute.
    if SyncToAsync.threadlocal.__dict__.get("main_event_loop_pid") is None:
        return threading.current_thread()
    return _of_frame(sys._getframe(1), threading.current_thread())


def on_event_loop() -> bool:
    """Does an event loop run in this thread, which a wait would block?"""
    return asyncio._get_running_loop() is not None


def refuse_event_loop(instead: str) -> None:
    """Raise SynchronousOnlyOperation in a thread whose event loop runs, as Django's ORM does.

    A sync call there would stop every other task until the server answers. If one of them held the lock, it could not
    release it. DJANGO_ALLOW_ASYNC_UNSAFE permits it, for notebooks.
    """
    if on_event_loop() and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(f"This would block the event loop. Use `{instead}`, a thread or sync_to_async.")


def _of_task(task: asyncio.Task[Any]) -> object:
    """The task itself, or the caller of async_to_sync if that made it."""
    coroutine: Any = task.get_coro()
    # the first coroutine of an event loop that async_to_sync started; what it awaits is not to be seen while it runs
    if getattr(coroutine, "cr_code", None) is _LOOP and coroutine.cr_frame is not None:
        coroutine = coroutine.cr_frame.f_locals["awaitable"]
    if getattr(coroutine, "cr_code", None) is _BRIDGE and coroutine.cr_frame is not None:
        return _of_bridge(coroutine.cr_frame.f_locals["call_result"]) or task
    return task


def _of_bridge(call_result: object) -> object | None:
    """The caller of async_to_sync that waits for ``call_result``."""
    for thread in _callers():
        for frame in _outwards(sys._current_frames().get(thread.ident or 0)):
            if frame.f_code is _CALLER and frame.f_locals.get("call_result") is call_result:
                return _of_frame(frame, thread)
    return None


def _callers() -> Iterator[threading.Thread]:
    """The threads that wait in async_to_sync for this code, from the innermost outwards.

    The stacks of others are not read if that can be avoided: of a thread that is just leaving a function Python 3.11
    may return a frame whose memory has another use by the time it is read.
    """
    executor = getattr(AsyncToSync.executors, "current", None)
    while executor is not None:
        yield executor._work_thread
        executor = getattr(executor, "_old_executor", None)
    yield from threading.enumerate()  # before asgiref 3.9 an executor does not know the one around it


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _of_frame(start: FrameType, thread: threading.Thread) -> object:
    """Walk outwards from ``start``: the task that awaits this call of sync_to_async, or else ``thread``."""
    for frame in _outwards(start):
        if frame.f_code is _WORKER:
            return _of_worker(frame)
    return thread


def _of_worker(frame: FrameType) -> object:
    """The context on whose behalf asgiref's worker runs ``frame``.

    Each call of sync_to_async creates a new ``child``, which distinguishes two calls of one function.
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

    The worker may get here before that task is suspended; until then its chain cannot be read.
    """
    running, until = asyncio.current_task(loop), clock.now() + _SEARCH
    while (task := _resting(loop, child)) is None and running is not None and clock.now() < until:
        if asyncio.current_task(loop) is not running:
            return _resting(loop, child)  # it may have been suspended between the two
        time.sleep(0.0001)
    return task


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
            link = awaited_by(link)
    return None


def awaited_by(link: Any) -> Any:
    """The object that a coroutine or a generator awaits; None if it is unknown."""
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(link, attribute):
            return getattr(link, attribute)
    # the step of an asynchronous generator, or the result of __await__: they do not say what they wrap
    if type(link).__name__ in _WRAPPERS:
        for referent in gc.get_referents(link):
            if isinstance(referent, (Coroutine, AsyncGenerator)):
                return referent
    return None


def alive(owner: object) -> bool:
    """Can ``owner`` still run? A dead thread, a finished task and a call that has returned cannot."""
    if isinstance(owner, threading.Thread):
        return owner.is_alive()
    if isinstance(owner, asyncio.Future):
        return not owner.done() and not owner.get_loop().is_closed()
    frames = chain.from_iterable(map(_outwards, sys._current_frames().values()))
    return any(frame.f_code is _WORKER and frame.f_locals["args"][0] is owner for frame in frames)


def finished(owner: object) -> bool:
    """Is ``owner`` a task or a call that has run to its end?

    It may have acquired for its caller: before Python 3.12 ``asyncio.wait_for(lock.aacquire(), 5)`` creates a task for
    the acquire alone. The Lease owns the lock (R16), so the lock stays held while other code refers to the Lease.
    """
    return owner.done() if isinstance(owner, asyncio.Future) else not isinstance(owner, threading.Thread)


def abandoned(owner: object) -> bool:
    """Is ``owner`` an unfinished task whose event loop is closed, so that it will never run again?"""
    return isinstance(owner, asyncio.Task) and not owner.done() and owner.get_loop().is_closed()


def refuse_trio() -> None:
    """Raise UnsupportedOperation in a task of trio: all tasks of its thread would enter each other's locks."""
    trio: Any = sys.modules.get("trio")  # without the import there is no task of trio
    if trio is None:
        return
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # another thread is importing it; no task of trio
        return
    raise UnsupportedOperation(
        "Locks do not work in a trio task: all tasks of the thread would count as one holder. Call a function that "
        "takes the lock in a thread: `await trio.to_thread.run_sync(function)`."
    )


# Frames that are shown, from the innermost outwards.
_DEPTH = 12


def stack(owner: object) -> str:
    """``file:line in function < file:line in its caller < ...``; empty if it is unknown.

    Of a task its coroutines, which await each other.
    """
    frames: list[FrameType] = []
    if isinstance(owner, threading.Thread):
        frames = list(_outwards(sys._current_frames().get(owner.ident or 0)))
    elif isinstance(owner, asyncio.Task):
        link: Any = owner.get_coro()
        while link is not None:
            found = (getattr(link, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
            frames[:0] = [frame for frame in found if frame is not None]
            link = awaited_by(link)
    places = (f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in frames[:_DEPTH])
    return one_line(" < ".join(places))
