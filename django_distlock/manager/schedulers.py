"""Schedulers whose tasks this library cannot tell apart: they are refused, for all of them would be one holder."""

from __future__ import annotations

import sys
from typing import Any

from django_distlock.exceptions import UnsupportedOperation


def refuse_trio() -> None:
    """UnsupportedOperation in a task of trio: all tasks of its thread would enter each other's locks."""
    # nobody is in a task of trio without the import
    if "trio" in sys.modules and _in_trio(sys.modules["trio"]):
        raise UnsupportedOperation(
            "Locks do not work in a trio task: all tasks of the thread would count as one holder. Call a function that "
            "takes the lock in a thread: `await trio.to_thread.run_sync(function)`."
        )


def _in_trio(trio: Any) -> bool:
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # another thread is importing it; no task of trio
        return False
    return True


def refuse_patches() -> None:
    """UnsupportedOperation if the standard library was patched in a way that locks cannot work with."""
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("select"):
        raise UnsupportedOperation(
            "Locks do not work under eventlet, which takes select.poll() away. Use gevent, threads or asyncio."
        )
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("socket") and not gevent.is_module_patched("threading"):
        raise UnsupportedOperation(
            "Locks do not work under gevent with thread=False: all greenlets of the thread would count as one holder. "
            "Call monkey.patch_all() without it."
        )
