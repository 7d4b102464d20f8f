"""The life of a candidate: wait for the lock, lead, step down in time, and wait again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import backoff
from django_distlock.concurrency.flow import uninterrupted
from django_distlock.exceptions import DistlockError, LockLost, UnsupportedOperation

from .decorators import is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lease import Lease
    from .lock import Lock

    Callback = Callable[["Term"], object] | None

logger = logging.getLogger("django_distlock.leader")

# The part of the TTL that is reserved for stepping down. Renewal begins after a third of the TTL, so there is time for
# a few attempts before that.
MARGIN = 0.25
# Seconds between two checks of the lease, which cost no round trip.
LOOK = 0.1
# Seconds between two attempts while the engine does not answer, at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Term:
    """One period of leadership, from an election to its end. The callbacks receive it."""

    def __init__(self, lease: Lease, margin: float | None, on_end: Callable[[], None] = lambda: None) -> None:
        self._lease = lease
        self._on_end = on_end
        left = None if lease.valid_until is None else lease.valid_until - clock.now()
        #: If the lease cannot be renewed, the term ends this many seconds before the lease does.
        self.margin = MARGIN * (left or 0.0) if margin is None else margin
        if left is not None and margin is not None:
            refuse_margin(margin, left)
        self._over = threading.Event()
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
        if self._over.is_set():
            return False
        if self._lease.held_for(self.margin):
            return True
        self._end("not renewed" if self._lease.held else "lost")
        return False

    def ensure_leading(self) -> None:
        """Raise LockLost if the term is over."""
        if not self.leading:
            raise LockLost(f"The term of {self._lease.name!r} is over ({self.reason or 'not renewed'}).")

    def wait(self, timeout: float) -> bool:
        """Sleep for ``timeout`` seconds or until the term is over. True while it lasts: ``while term.wait(1): ...``"""
        self._over.wait(timeout)
        return self.leading

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._over.set()
        self._on_end()


class Candidacy:
    """One candidate from its start to its stop, as one task.

    ``announce`` is called with each new Term, and with None when it ends; ``ended`` is called once, with the error that
    ended the candidacy, or None.
    """

    def __init__(
        self,
        lock: Lock,
        margin: float | None,
        on_elected: Callback,
        on_demoted: Callback,
        announce: Callable[[Term | None], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._lock, self._margin = lock, margin
        self._on_elected, self._on_demoted = on_elected, on_demoted
        self._announce, self._ended = announce, ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._changed = asyncio.Event()
        self._term: Term | None = None
        self._stopping = False
        self._queueing = False
        #: The threads that run callbacks now.
        self.callbacks: set[threading.Thread] = set()

    def end_term(self, reason: str) -> None:
        """End the present term; for the reason "stopped" the candidacy too. May be called in any thread."""
        if reason == "stopped":
            self._stopping = True
        term = self._term
        if term is not None:
            term._end(reason)
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the candidacy has ended with it
                self._loop.call_soon_threadsafe(self._look_up)

    def _look_up(self) -> None:
        self._changed.set()
        if self._stopping and self._queueing and self._task is not None:
            self._queueing = False
            self._task.cancel()

    async def run(self) -> None:
        """Wait for the lock and lead, again and again, until :meth:`end_term` or a cancellation of this task."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        error: BaseException | None = None
        try:
            await self._campaign()
        except BaseException as why:
            error = why
            raise
        finally:
            self._ended(error)

    async def _campaign(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                lease = await self._queue()
                if lease is None:
                    return
                failed = await self._serve(lease) == "failed"
            except UnsupportedOperation:
                raise
            except DistlockError as error:
                logger.warning("The election for %r of alias %r failed: %s", self._lock.name, self._lock.using, error)
                failed = True
            failures = failures + 1 if failed else 0
            if failed:
                await self._pause(backoff(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE))

    async def _queue(self) -> Lease | None:
        """Wait for the lock; None if the candidacy was stopped."""
        assert self._task is not None  # noqa: S101 - set by run()
        cancelling = self._task.cancelling()
        self._queueing = True
        try:
            return await self._lock.aacquire()
        except asyncio.CancelledError:
            # as in asyncio.timeout: a cancellation by other code is raised
            if not self._queueing and self._task.uncancel() <= cancelling:
                return None
            raise
        finally:
            self._queueing = False

    async def _pause(self, seconds: float) -> None:
        if not self._stopping:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def _serve(self, lease: Lease) -> str:
        """Lead with ``lease`` until the term ends, and return the reason."""
        try:
            term = self._term = Term(lease, self._margin, self._wake)
        except ValueError:
            await lease.arelease()
            raise
        work: asyncio.Task[None] | None = None
        try:
            lease.on_lost(lambda _: term._end("lost"))
            logger.info("%r of alias %r: elected.", lease.name, lease.using)
            self._announce(term)
            if self._on_elected is not None:
                work = asyncio.create_task(self._work(self._on_elected, term))
            await self._watch(term)
        except BaseException:
            term._end("stopped")
            await uninterrupted(self._step_down(term, work))
            raise
        await self._step_down(term, work)
        return term.reason or "lost"

    async def _watch(self, term: Term) -> None:
        while term.reason is None:
            self._changed.clear()
            if self._stopping:
                term._end("stopped")
            elif term.leading:
                left = LOOK if term.valid_until is None else term.valid_until - term.margin - clock.now()
                await self._pause(min(LOOK, max(left, 0)))

    async def _step_down(self, term: Term, work: asyncio.Task[None] | None) -> None:
        """Announce the end, wait until the callbacks have returned, and release the lock only then."""
        lease = term._lease
        level = logging.INFO if term.reason in ("resigned", "stopped") else logging.WARNING
        logger.log(level, "%r of alias %r: the term has ended (%s).", lease.name, lease.using, term.reason)
        self._term = None
        self._announce(None)
        if work is not None and is_async(self._on_elected):
            work.cancel()
        if self._on_demoted is not None:
            await self._called(self._on_demoted, term)
        if work is not None:
            await asyncio.wait([work])
        try:
            if not lease.lost:
                await lease.arelease()
        except DistlockError as error:
            logger.warning("%r of alias %r could not be released: %s", lease.name, lease.using, error)

    async def _work(self, callback: Callable[[Term], object], term: Term) -> None:
        if not await self._called(callback, term):
            term._end("failed")

    async def _called(self, callback: Callable[[Term], object], term: Term) -> bool:
        """Call ``callback``: a coroutine function here, a plain function in a new thread. False if it failed, which is
        logged."""
        try:
            if is_async(callback):
                await callback(term)  # type: ignore[misc]
            else:
                await self._in_thread(callback, term)
        except Exception:
            logger.exception("A callback for %r of alias %r failed.", self._lock.name, self._lock.using)
            return False
        return True

    async def _in_thread(self, callback: Callable[[Term], object], term: Term) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def call() -> None:
            error: BaseException | None = None
            try:
                callback(term)
            except SystemExit:
                pass  # it ends the thread, as in any other thread
            except BaseException as why:
                error = why
            finally:
                connections.close_all()  # those of this thread: nothing else would ever close them
                self.callbacks.discard(thread)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        thread = threading.Thread(target=call, name=f"distlock-leader-{callback_name(callback)}", daemon=True)
        self.callbacks.add(thread)
        thread.start()
        await done


def refuse_margin(margin: float, ttl: float) -> None:
    """Raise ValueError for a margin that leaves no time for a renewal."""
    if margin >= ttl / 2:
        raise ValueError(
            f"margin must be below half of the TTL, not {margin:g} of {ttl:g} s: renewal begins after a third of it."
        )


def callback_name(callback: object) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))
