"""Deferred clean-up: undoes requests of interrupted callers once the server answers again."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# A server that hangs may execute a request long after its caller was interrupted. Such a request is undone repeatedly,
# until this time after the first success; seconds.
UNDO_WINDOW = 5.0
# The time for one attempt to undo, and the pause before the next; seconds.
UNDO_PATIENCE, UNDO_PAUSE = 0.5, 0.25


@dataclass(slots=True)
class UndoRequest(Generic[T]):
    """A request that may have been executed, or may be executed later."""

    what: T
    uncertain: bool
    lane: int
    due: float
    forget_at: float
    done_at: float | None = None
    being_undone: bool = False


class PendingCleanup(Generic[T]):
    """The requests of one alias that have to be undone, by threads that end when nothing is due.

    Each server has a lane, with a thread of its own: a server that hangs does not hold up the others.

    ``undo(what, until)`` undoes one request by the monotonic time ``until``. It raises an exception if
    that failed. It is repeated until it succeeds and, for requests that may still be executed, for ``window`` seconds
    more; but no longer than ``window`` after the lease of the request has ended by itself.
    """

    def __init__(
        self,
        undo: Callable[[T, float], Coroutine[Any, Any, object]],
        thread_name: str,
        *,
        window: float = UNDO_WINDOW,
        patience: float = UNDO_PATIENCE,
    ) -> None:
        self._undo = undo
        self._thread_name = thread_name
        self._window = window
        self._patience = patience
        # by token; empty: nothing is pending
        self.requests: dict[str, UndoRequest[T]] = {}
        self._guard = threading.Lock()
        self._threads: dict[int, threading.Thread] = {}

    def add(self, token: str, what: T, ttl: float, uncertain: bool, *, lane: int = 0) -> None:
        """Undo ``what``, from now on, at the server of ``lane``. ``uncertain``: it may be executed later. Replaces what
        ``token`` stood for."""
        now = clock.now()
        with self._guard:
            self.requests[token] = UndoRequest(what, uncertain, lane, now, now + ttl + self._window)
            self._start(lane)

    def discard(self, token: str) -> bool:
        """Do not undo the request: its caller repeats it. False if it is being undone at this moment."""
        with self._guard:
            request = self.requests.get(token)
            if request is not None and request.being_undone:
                return False
            self.requests.pop(token, None)
            return True

    def tick(self, now: float) -> float | None:
        """Begin with the requests that are due. The time of the next call, None if no request is left."""
        with self._guard:
            if not self.requests:
                return None
            for lane in {request.lane for request in self.requests.values() if request.due <= now}:
                self._start(lane)
            return max(min(request.due for request in self.requests.values()), now + UNDO_PAUSE)

    def close(self) -> None:
        """Forget the requests: their leases end by themselves."""
        with self._guard:
            self.requests.clear()
            threads = list(self._threads.values())
        until = clock.now() + 2 * self._patience
        for thread in threads:
            thread.join(max(0.0, until - clock.now()))

    def _start(self, lane: int) -> None:
        # at the end of the interpreter a thread that is started waits for ever for its turn
        if lane not in self._threads and not sys.is_finalizing():
            thread = threading.Thread(target=self._work, args=(lane,), name=self._thread_name, daemon=True)
            with contextlib.suppress(RuntimeError):  # there is no thread: the next tick tries again
                thread.start()
                self._threads[lane] = thread

    def _work(self, lane: int) -> None:
        while True:
            now = clock.now()
            with self._guard:
                due = [each for each in self.requests.items() if each[1].lane == lane and each[1].due <= now]
                if not due:
                    # its start may have been interrupted, and the lane have another thread
                    if self._threads.get(lane) is threading.current_thread():
                        del self._threads[lane]
                    return
            for token, request in due:
                self._attempt(token, request)

    def _attempt(self, token: str, request: UndoRequest[T]) -> None:
        with self._guard:
            if self.requests.get(token) is not request:
                return
            request.being_undone = True
        try:
            run(self._undo(request.what, clock.now() + self._patience))
        except Exception:
            undone = False
        else:
            undone = True
        now = clock.now()
        request.due = now + UNDO_PAUSE
        if undone and request.done_at is None:
            request.done_at = now + (self._window if request.uncertain else 0.0)
        with self._guard:
            request.being_undone = False
            finished = undone and request.done_at is not None and now >= request.done_at
            if (finished or now >= request.forget_at) and self.requests.get(token) is request:
                del self.requests[token]
