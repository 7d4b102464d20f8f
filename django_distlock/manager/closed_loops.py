"""What a task holds whose event loop was closed in the midst of it: the task never goes on to its release."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line

from . import owner
from .lock_table import holdings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .hold import Holding

logger = logging.getLogger("django_distlock.closedloops")

# The tasks that were ended, each once. A loop that is closed never runs again.
_ended: weakref.WeakSet[Any] = weakref.WeakSet()


def look(found: Iterable[Holding]) -> None:
    """End the owners of these holdings whose event loop is closed, each in a thread of its own: what they clean up may
    take any time."""
    for task in {holding.owner for holding in found if owner.abandoned(holding.owner)} - set(_ended):
        thread = threading.Thread(target=_end, args=(task,), name="distlock-release", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread to be had: at the next look
            thread.start()
            _ended.add(task)


def _end(task: object) -> None:
    """Have the task clean up where it was stopped, then release what it leaves."""
    held = [holding for holding in holdings.held() if holding.owner is task]
    unfinished = [holding for holding in holdings.unfinished() if holding.owner is task]
    for holding in held:  # so that the task's own blocks, which are left here, are seen to be the holder's
        holding.owner = threading.current_thread()
    owner.end(task)
    for holding in unfinished:
        holdings.end(holding)
    for holding in held:
        if holding.in_use():  # handed on, or in use by a thread that the task waited for
            holding.owner = task
            continue
        for lease in tuple(holding.leases):
            try:
                lease._release(False)
            except Exception as error:
                logger.warning("The lock %r of a closed event loop: %s", holding.key.name, one_line(error))
