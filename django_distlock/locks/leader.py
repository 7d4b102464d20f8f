"""Leader election: one of many candidates leads; if it stops or dies, another one takes over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

from django.db import connections

from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background
from django_distlock.concurrency.deadline import Deadline, backoff, pause
from django_distlock.concurrency.flow import finished, run, uninterrupted
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.outcome import Outcome
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import DistlockError, LockLost, UnsupportedOperation
from django_distlock.manager import owner
from django_distlock.manager.registry import registry
from django_distlock.validation import UNSET, Timeout, optional_seconds, qualified_name, seconds

from .decorators import is_async
from .lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lease import Lease

__all__ = ["Leader", "Term"]

logger = logging.getLogger("django_distlock.leader")

# The part of the TTL that is reserved for stepping down. Renewal begins after a third of the TTL, so there is time for
# a few attempts before that.
MARGIN = 0.25
# Seconds between two checks of the lease, which cost no round trip.
CHECK_EVERY = 0.1
# Seconds between two attempts while the engine does not answer, at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Term:
    """One period of leadership, from an election to its end. The callbacks receive it."""

    def __init__(self, lease: Lease, margin: float | None) -> None:
        self._lease = lease
        left = None if lease.valid_until is None else lease.valid_until - clock.now()
        #: If the lease cannot be renewed, the term ends this many seconds before the lease does.
        self.margin = MARGIN * (left or 0.0) if margin is None else margin
        self._over: Outcome[None] = Outcome()
        #: Why the term ended: "resigned", "stopped", "lost", "not renewed" or "failed"; None while it lasts.
        self.reason: str | None = None

    def __repr__(self) -> str:
        return f"<Term of {self._lease.name!r} on {self._lease.using!r}: {self.reason or 'leading'}>"

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of every earlier leader.

        Raises UnsupportedOperation if the engine has none.
        """
        return self._lease.fence

    @property
    def valid_until(self) -> float | None:
        """The end of the lease, as in :attr:`Lease.valid_until`; each renewal extends it. None without a TTL."""
        return self._lease.valid_until

    @property
    def leading(self) -> bool:
        """Is the leadership certain for the length of the margin, even if the lease is never renewed again?

        Once this was False it stays False: a renewal that comes late does not bring the term back.
        """
        if self._over.done():
            return False
        if self._lease.held_for(self.margin):
            return True
        self._end("not renewed" if self._lease.held else "lost")
        return False

    def ensure_leading(self) -> None:
        """Raise LockLost if the term is over."""
        if not self.leading:
            raise LockLost(f"The term of {self._lease.name!r} is over ({self.reason or 'not renewed'}).")

    def wait(self, timeout: float | None) -> bool:
        """Sleep for ``timeout`` seconds (None: without end) or until the term is over. True while it lasts:
        ``while term.wait(1): ...``"""
        run(self._over.wait(timeout))
        return self.leading

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._over.set_result(None)


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
        if isinstance(self._lock.ttl, float):
            self._refuse_margin(self._lock.ttl)
        for argument, callback in (("on_elected", on_elected), ("on_demoted", on_demoted)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{argument} must be callable, not {type(callback).__name__}.")
        self._on_elected, self._on_demoted = on_elected, on_demoted
        #: The present Term, or None. It may already be over: see ``leading``.
        self.term: Term | None = None
        self._mutex = threading.RLock()  # a signal's handler may call stop() in the middle of start()
        self._state: Literal["new", "standing", "over"] = "new"
        self._stopping = False
        # the candidacy that start() began, and that of ``async with``
        self._started: Outcome[None] | None = None
        self._block: asyncio.Task[None] | None = None
        # the threads of the candidacy and of its callbacks
        self._threads: set[int] = set()
        # what stop() cancels: the task that waits for the lock and leads
        self._task: asyncio.Task[None] | None = None
        _leaders.add(self)

    def _forget_parent(self) -> None:
        """In the child of a fork: the candidacy, its threads and its term are the parent's, and never end here."""
        term, self.term, self._state = self.term, None, "over"
        self._mutex, self._threads = threading.RLock(), set()
        self._started = self._block = self._task = None
        if term is not None:
            term._over = Outcome()  # another thread may just be waiting for it
            term._end("lost")

    def _refuse_margin(self, ttl: float) -> None:
        if self._margin is not None and self._margin >= ttl / 2:
            raise ValueError(
                f"margin must be below half of the TTL, not {self._margin:g} of {ttl:g} s: "
                "renewal begins after a third of it."
            )

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
        self._end_term("resigned")

    def elected(self, timeout: float | None = None) -> Term | None:
        """Wait until this candidate leads, and return the Term.

        Returns None after ``timeout`` seconds (None: wait for ever), or if the candidacy ends.
        """
        owner.refuse_event_loop("await leader.aelected()")
        return run(self.aelected(timeout))

    async def aelected(self, timeout: float | None = None) -> Term | None:
        """:meth:`elected` for a task."""
        deadline = Deadline(seconds("timeout", timeout, none=True))
        while not self.leading and self._state != "over" and deadline.left():
            await pause(min(CHECK_EVERY / 2, deadline.left()))
        term = self.term
        return term if term is not None and term.leading else None

    # --- in a thread

    def start(self) -> None:
        """Become a candidate in a background thread. Raises RuntimeError if it is one already."""
        with self._mutex:
            self._enter()
            try:
                self._started = Background("distlock-leader").start(self._in_thread, self._stand_here)
            except BaseException:  # no thread could be started: start() may be called again
                self._state = "over"
                raise

    def stop(self, timeout: float | None = None) -> None:
        """Step down, release the lock and end the candidacy. Waits for the end, at most ``timeout`` seconds.

        If an error had ended the candidacy before, it is raised. In a callback this method does not wait.
        """
        seconds("timeout", timeout, none=True)
        with self._mutex:  # once start() has told what it has started
            candidacy = self._started
        if self._state == "standing":
            self._stopping = True
            self._end_term("stopped")
            self._cancel()
        if candidacy is None or threading.get_ident() in self._threads:
            return
        run(candidacy.wait(timeout))
        if candidacy.done():
            self._started = None
            candidacy.result()

    def run(self) -> None:
        """Call :meth:`start` and wait until another thread or a callback calls :meth:`stop`."""
        with self:
            candidacy = self._started
            if candidacy is not None:
                run(candidacy.wait())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.stop()
        except Exception:  # it has ended the candidacy, and was logged
            if error is None:
                raise

    # --- in a task

    async def arun(self) -> None:
        """Be a candidate in this task until it is cancelled, or until ``stop()``.

        A cancelled candidate steps down and releases the lock before CancelledError is raised.
        """
        self._enter()
        await self._stand_in_task()

    async def _stand_in_task(self) -> None:
        try:
            await self._stand()
        finally:
            self._state = "over"

    async def __aenter__(self) -> Self:
        self._enter()  # no wait follows: a cancellation here would leave a candidate that no block ends
        self._block = asyncio.create_task(self._stand_in_task(), name="distlock-leader")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        task, self._block = self._block, None
        if task is not None:
            self.stop()
            try:
                await finished(task)
            except Exception:  # as in __exit__
                if error is None:
                    raise
            finally:
                if task.cancelled():  # perhaps before its first step
                    self._state = "over"

    # --- the candidacy: one task, until it is stopped

    def _enter(self) -> None:
        with self._mutex:
            if self._state == "standing":
                raise RuntimeError(f"{self!r} is a candidate already.")
            self._state, self._stopping, self._started, self._task = "standing", False, None, None

    def _end_term(self, reason: str) -> None:
        """End the present term. May be called in any thread."""
        term = self.term
        if term is not None:
            term._end(reason)

    def _cancel(self) -> None:
        """Cancel the task of the candidacy. May be called in any thread."""
        task = self._task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the candidacy has ended with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _stand_here(self) -> None:
        """:meth:`_stand` on a new event loop, where a wait in the queue can be cancelled at any time."""
        stand = self._stand()
        try:
            asyncio.run(stand)
        finally:  # also if there was no event loop to be had
            stand.close()
            self._state = "over"  # only here: as soon as it is over, another thread may begin the next candidacy

    async def _stand(self) -> None:
        """Be a candidate until :meth:`stop`. If this task is cancelled, step down first."""
        task = self._task = asyncio.create_task(self._compete())
        if self._stopping:  # before there was a task to cancel
            task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await uninterrupted(asyncio.wait([task]))
            raise
        if not task.cancelled():
            task.result()

    async def _compete(self) -> None:
        """Wait for the lock and lead, again and again."""
        failures = 0
        try:
            entry = registry.entry(self.using)
            if self._lock.ttl is UNSET and entry.backend.supports_ttl:
                self._refuse_margin(entry.config.ttl)
            while not self._stopping:
                failures = 0 if await self._campaign() else failures + 1
                if failures:
                    await asyncio.sleep(backoff(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE))
        except Exception as error:
            logger.error("The candidacy for %r of alias %r has ended: %s", self.name, self.using, one_line(error))
            raise

    async def _campaign(self) -> bool:
        """Wait for the lock and lead once. False if that failed, which is logged."""
        try:
            return await self._lead(await self._lock.aacquire()) != "failed"
        except UnsupportedOperation:
            raise
        except DistlockError as error:
            logger.warning("The election for %r of alias %r failed: %s", self.name, self.using, error)
            return False

    async def _lead(self, lease: Lease) -> str | None:
        """Lead with ``lease`` until the term ends, and return the reason."""
        term = Term(lease, self._margin)
        work: asyncio.Task[None] | None = None
        try:
            lease.on_lost(lambda _: term._end("lost"))
            logger.info("%r of alias %r: elected.", lease.name, lease.using)
            self.term = term
            if self._on_elected is not None:
                work = asyncio.create_task(self._call(self._on_elected, term))
            await self._watch(term)
        finally:
            term._end("stopped")  # unless it has ended
            await finished(self._step_down(term, work))
        return term.reason

    async def _watch(self, term: Term) -> None:
        while term.leading:
            left = CHECK_EVERY if term.valid_until is None else term.valid_until - term.margin - clock.now()
            await asyncio.sleep(min(CHECK_EVERY, max(left, 0)))

    async def _step_down(self, term: Term, work: asyncio.Task[None] | None) -> None:
        """Wait until the callbacks have returned, and release the lock only then."""
        lease = term._lease
        level = logging.INFO if term.reason in ("resigned", "stopped") else logging.WARNING
        logger.log(level, "%r of alias %r: the term has ended (%s).", lease.name, lease.using, term.reason)
        self.term = None
        if work is not None and is_async(self._on_elected):
            work.cancel()
        if self._on_demoted is not None:
            await self._call(self._on_demoted, term)
        if work is not None:
            await asyncio.wait([work])
        try:
            if not lease.lost:
                await lease.arelease()
        except DistlockError as error:
            logger.warning("%r of alias %r could not be released: %s", lease.name, lease.using, error)

    async def _call(self, callback: Callable[[Term], object], term: Term) -> None:
        """Call ``callback``: a coroutine function here, a plain function in a new thread. An error is logged, and ends
        the term."""
        try:
            if is_async(callback):
                await callback(term)  # type: ignore[misc]
            else:
                thread = Background(f"distlock-leader-{qualified_name(callback)}")
                await thread.call(math.inf, self._in_thread, callback, term)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # this call is to end; without that the callback has awaited a task that it had cancelled itself
            logger.exception("A callback for %r of alias %r failed.", self.name, self.using)
            term._end("failed")

    def _in_thread(self, function: Callable[..., object], *args: Any) -> None:
        """Call it in a new thread, which :meth:`stop` does not wait for in that thread itself."""
        ident = threading.get_ident()
        self._threads.add(ident)
        try:
            function(*args)
        except SystemExit:
            pass  # it ends the thread, as in any other thread
        finally:
            connections.close_all()  # those of this thread: nothing else would ever close them
            self._threads.discard(ident)


def _after_fork() -> None:
    for leader in list(_leaders):
        leader._forget_parent()


_leaders: WeakSet[Leader] = WeakSet()
at_fork(Order.HOLDS, child=_after_fork)
