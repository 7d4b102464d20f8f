"""Leader election: one of many candidates leads; if it stops or dies, another one takes over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Self

from django_distlock.concurrency.flow import finished
from django_distlock.concurrency.text import one_line
from django_distlock.manager import owner
from django_distlock.validation import UNSET, Timeout, optional_seconds, seconds

from .candidacy import Candidacy, Term, refuse_margin
from .lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Leader", "Term"]

logger = logging.getLogger("django_distlock.leader")


class Leader:
    """One candidate in an election, which leads while it holds the lock ``name``.

    ::

        leader = Leader("scheduler", using="redis", ttl=15, on_elected=work, on_demoted=tidy_up)
        with leader: ...            # a candidate in a background thread while the block runs
        leader.run()                # in this thread, until leader.stop()
        async with leader: ...      # in a background task
        await leader.arun()         # in this task, until it is cancelled

    :param name: the name of the lock, as for :func:`advisory_lock`. The holder of that lock leads.
    :param using: the alias in ``DISTLOCK``.
    :param ttl: if this process dies, another candidate leads after this many seconds at the latest. Unset: the alias's
        TTL. Only for engines with a TTL.
    :param margin: if the lease cannot be renewed, the leader steps down this many seconds before its end. Unset: a
        quarter of the TTL. Has no effect with engines without a TTL.
    :param on_elected: called with the :class:`Term`. A plain function runs in a background thread and may continue
        while ``term.leading``; a coroutine function runs as a task, which is cancelled at the end of the term. If it
        raises, the error is logged, the term ends, and another candidate may lead. If it returns, the term continues.
    :param on_demoted: called with the Term when it ends.

    A candidate waits in the engine's queue. After a term it becomes a candidate again, once both callbacks have
    returned, until it is stopped. If the engine does not answer, the error is logged and the attempt repeated.

    Raises ValueError and TypeError for bad input. With an engine without a TTL, ``run()``, ``arun()`` and ``stop()``
    raise UnsupportedOperation if ``ttl`` was given.
    """

    def __init__(
        self,
        name: str,
        *,
        using: str = "default",
        ttl: Timeout = UNSET,
        margin: Timeout = UNSET,
        on_elected: Callable[[Term], object] | None = None,
        on_demoted: Callable[[Term], object] | None = None,
    ) -> None:
        self._lock = Lock(name, using=using, timeout=None, ttl=ttl)
        self.name, self.using = self._lock.name, self._lock.using
        self._lock.template = self._lock.name
        margin = optional_seconds("margin", margin)
        self._margin = margin if isinstance(margin, float) else None
        if self._margin is not None and isinstance(self._lock.ttl, float):
            refuse_margin(self._margin, self._lock.ttl)
        for argument, callback in (("on_elected", on_elected), ("on_demoted", on_demoted)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{argument} must be callable, not {type(callback).__name__}.")
        self._on_elected, self._on_demoted = on_elected, on_demoted
        self._guard = threading.Lock()
        self._candidacy: Candidacy | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._over = False  # has the last candidacy ended?
        self._waiting: list[Future[Term | None]] = []
        #: The present Term, or None. It may already be over: see ``leading``.
        self.term: Term | None = None

    def __repr__(self) -> str:
        return f"<Leader {self.name!r} on {self.using!r}{': leading' if self.leading else ''}>"

    @property
    def leading(self) -> bool:
        """Does this candidate lead now?"""
        term = self.term
        return term is not None and term.leading

    def resign(self) -> None:
        """Step down and queue again, behind the other candidates. Does not wait; may be called in any thread.

        The lock is released once both callbacks have returned. A candidate without rivals is elected again.
        """
        candidacy = self._candidacy
        if candidacy is not None:
            candidacy.end_term("resigned")

    def elected(self, timeout: float | None = None) -> Term | None:
        """Wait until this candidate leads, and return the Term.

        Returns None after ``timeout`` seconds (None: wait for ever), or if the candidacy ends.
        """
        owner.refuse_event_loop("await leader.aelected()")
        waiting = self._wait_for_election(timeout)
        try:
            return waiting.result(timeout)
        except FutureTimeout:
            return None
        finally:
            waiting.cancel()

    async def aelected(self, timeout: float | None = None) -> Term | None:
        """:meth:`elected` for a task."""
        waiting = self._wait_for_election(timeout)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waiting), timeout)
        except TimeoutError:
            return None
        finally:
            waiting.cancel()

    def _wait_for_election(self, timeout: float | None) -> Future[Term | None]:
        seconds("timeout", timeout, none=True)
        waiting: Future[Term | None] = Future()
        with self._guard:
            if self.leading or self._over:
                waiting.set_result(self.term)
            else:
                self._waiting = [other for other in self._waiting if not other.done()] + [waiting]
        return waiting

    def _announce(self, term: Term | None) -> None:
        with self._guard:
            self.term = term
            if term is not None:
                self._settle(term)

    def _ended(self, error: BaseException | None) -> None:
        with self._guard:
            self._candidacy = None
            self._over = True
            self._settle(None)

    def _settle(self, term: Term | None) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(term)

    def _enter(self) -> Candidacy:
        with self._guard:
            if self._candidacy is not None:
                raise RuntimeError(f"{self!r} is a candidate already.")
            self._over = False
            self._candidacy = Candidacy(
                self._lock, self._margin, self._on_elected, self._on_demoted, self._announce, self._ended
            )
            return self._candidacy

    # --- in a thread

    def start(self) -> None:
        """Become a candidate in a background thread. Raises RuntimeError if it is one already."""
        candidacy = self._enter()
        self._error = None
        thread = threading.Thread(target=self._in_thread, args=(candidacy,), name="distlock-leader", daemon=True)
        try:
            thread.start()
        except BaseException as error:  # no thread could be started: start() may be called again
            self._ended(error)
            raise
        self._thread = thread

    def _in_thread(self, candidacy: Candidacy) -> None:
        # on a new event loop, where a wait in the queue can be cancelled at any time
        try:
            asyncio.run(candidacy.run())
        except BaseException as error:
            logger.error("The candidacy for %r of alias %r has ended: %s", self.name, self.using, one_line(error))
            self._error = error

    def stop(self, timeout: float | None = None) -> None:
        """Step down, release the lock and end the candidacy. Waits for the end, at most ``timeout`` seconds.

        If an error had ended the candidacy before, it is raised. In a callback this method does not wait.
        """
        seconds("timeout", timeout, none=True)
        candidacy, thread = self._candidacy, self._thread
        if candidacy is not None:
            candidacy.end_term("stopped")
            if threading.current_thread() in candidacy.callbacks:
                return
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        if not thread.is_alive():
            self._thread = None
            error, self._error = self._error, None
            if error is not None:
                raise error

    def run(self) -> None:
        """Call :meth:`start` and wait until another thread or a callback calls :meth:`stop`."""
        self.start()
        try:
            thread = self._thread
            if thread is not None:
                thread.join()
        finally:
            self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._unless_masked(error):
            self.stop()

    @contextlib.contextmanager
    def _unless_masked(self, error: object) -> Iterator[None]:
        """Raise the error that ended the candidacy, or only log it if the block itself has raised."""
        try:
            yield
        except Exception as why:
            if error is None:
                raise
            logger.warning("The candidacy for %r of alias %r had ended: %s", self.name, self.using, one_line(why))

    # --- in a task

    async def arun(self) -> None:
        """Be a candidate in this task until it is cancelled, or until ``stop()``.

        A cancelled candidate steps down and releases the lock before CancelledError is raised.
        """
        await self._enter().run()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.arun(), name="distlock-leader")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        task, self._task = self._task, None
        if task is not None:
            self.stop()
            with self._unless_masked(error):
                await finished(task)
