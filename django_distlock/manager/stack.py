"""Where a thread or a task is now, in one line for the log."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line

from . import owner as context

if TYPE_CHECKING:
    from types import FrameType

# Frames that are shown, from the innermost outwards.
DEPTH = 12


def whereabouts(owner: object) -> str:
    """``file:line in function < file:line in its caller < ...``; empty if it cannot be told."""
    frames: list[FrameType] = []
    if isinstance(owner, threading.Thread):
        frames = _stack(sys._current_frames().get(owner.ident or 0))
    elif isinstance(owner, asyncio.Task):
        frames = _of_task(owner)
    places = (f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in frames[:DEPTH])
    return one_line(" < ".join(places))


def _stack(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _of_task(task: asyncio.Task[Any]) -> list[FrameType]:
    """The coroutines that await each other, the innermost first. ``Task.get_stack()`` gives only the outermost."""
    frames: list[FrameType] = []
    link: Any = task.get_coro()
    while link is not None:
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(link, name, None))), None)
        if frame is not None:
            frames.insert(0, frame)
        link = context.awaited_by(link)
    # one that runs now awaits nothing: what it has called is on the stack of its thread
    for top in sys._current_frames().values():
        stack = _stack(top)
        if frames and frames[0] in stack:
            return stack[: stack.index(frames[0])] + frames
    return frames
