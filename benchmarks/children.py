"""Processes beside the one that measures, each with a pipe to it."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

PATIENCE = 45.0
LEAVE = 5.0  # seconds to close what it has open


def child(stack: contextlib.ExitStack, work: Callable[..., None], *args: object) -> Connection:
    """Start ``work(pipe, *args)`` in a process, have the stack end it, and return our end of its pipe."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    stack.callback(end, process)
    return pipe


def end(process: SpawnProcess) -> None:
    """Let a process come to its end, or end it."""
    process.join(LEAVE)
    if process.is_alive():
        process.kill()
        process.join()


def answer(pipe: Connection, deadline: float) -> Any:
    """Return what a process sent, None if it ended or sent nothing by that monotonic time."""
    try:
        return pipe.recv() if pipe.poll(max(0.0, deadline - time.monotonic())) else None
    except EOFError:
        return None


def value(pipe: Connection) -> float:
    """Return the number that a process sends; RuntimeError if it sends an error as text, or nothing."""
    got = answer(pipe, time.monotonic() + PATIENCE)
    if not isinstance(got, float):
        raise RuntimeError(got or f"a process ended or sent nothing for {PATIENCE:g} s")
    return got
