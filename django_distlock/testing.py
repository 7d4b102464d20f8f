"""Helpers for tests of code that takes locks. See the page on testing."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar
from unittest import mock

from django.db import connections
from django.test.runner import DiscoverRunner
from django.test.utils import TestContextDecorator, override_settings

from django_distlock.concurrency import clock, flow
from django_distlock.concurrency.background import Background
from django_distlock.conf import configured
from django_distlock.exceptions import DistlockError, LockNotHeld
from django_distlock.locks.lease import Lease
from django_distlock.manager import open_transactions, owner, release
from django_distlock.manager.introspection import held_locks
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.registry import registry
from django_distlock.operations.lookup import listed_as

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = [
    "LockRunnerMixin",
    "LockTestRunner",
    "assert_locked",
    "assert_no_locks_held",
    "close_lock_sessions",
    "lose",
    "override_locks",
    "race",
]

T = TypeVar("T")
MEMORY = "django_distlock.backends.memory.MemoryBackend"


class override_locks(TestContextDecorator):
    """Keep locks in the memory of this process, without a server.

    A context manager, and a decorator of test functions (``async def`` too) and of ``TestCase`` classes, where it
    applies to each test. Inside it a lock ends with its block, also inside ``atomic()``: ``TestCase`` puts each test
    into a transaction. Locks that are held at the end are forgotten.

    :param engine: ``"memory"``.
    :param using: one alias or several; all, if left out. An alias that is not in ``DISTLOCK`` is a ValueError.
    """

    def __init__(self, engine: str = "memory", *, using: str | Collection[str] | None = None) -> None:
        if engine != "memory":
            raise ValueError(f'engine must be "memory", not {engine!r}.')
        super().__init__()
        self._using = [using] if isinstance(using, str) else using
        self._stack = contextlib.ExitStack()

    def enable(self) -> None:
        aliases = configured()
        unknown = [alias for alias in self._using or () if alias not in aliases]
        if unknown:
            raise ValueError(f"using: there is no lock alias {unknown[0]!r} in DISTLOCK.")
        in_memory = {
            alias: {**entry, "BACKEND": MEMORY, "OPTIONS": {}} if self._using is None or alias in self._using else entry
            for alias, entry in aliases.items()
        }
        with contextlib.ExitStack() as stack:
            stack.enter_context(override_settings(DISTLOCK=in_memory))
            stack.enter_context(mock.patch.object(open_transactions, "ignored", True))
            self._stack = stack.pop_all()

    def disable(self) -> None:
        self._stack.close()


class _StillLocked:
    def __init__(self, name: str, using: str) -> None:
        self._name, self._using = name, using

    def check(self, when: str) -> Self:
        key, listed = listed_as(self._name, self._using)
        (report,) = held_locks(self._using)
        if report.error is not None:
            raise DistlockError(f"The locks of alias {self._using!r} cannot be listed: {report.error}.")
        named = [info for info in report.locks if "kind" not in info.details]
        if not any(info.name == listed or info.key == key for info in named):
            held = (f"{info.name or info.key!r}, held by {info.holder or 'unknown'}" for info in named)
            what = "; ".join(held) or "nothing is"
            raise AssertionError(f"{self._name!r} on {self._using!r} is not held{when}. What is held: {what}.")
        return self

    def __enter__(self) -> None:
        """The lock was checked by :func:`assert_locked`."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.check(" any more")


def assert_locked(name: str, using: str = "default") -> _StillLocked:
    """AssertionError unless the lock is held now, by this process or another; the message lists the held locks.

    As a context manager it checks again at the end of the block.
    """
    return _StillLocked(name, using).check("")


def assert_no_locks_held() -> None:
    """AssertionError if this process holds any lock; the message names them."""
    held = [
        f"{hold.key.name!r} on {hold.backend.alias!r}"
        + (", until its transaction ends" if hold.state is State.DEFERRED else "")
        for hold in lock_table.held()
    ]
    if held:
        raise AssertionError(f"Still held: {'; '.join(held)}.")


def lose(lease: Lease, *, reason: str = "rehearsed") -> None:
    """Lose a lock while it is held, as if its server had been restarted.

    The engine frees it, ``lease.lost`` is true, the callbacks of ``on_lost()`` and the receivers of ``lock_lost`` are
    called, and the release raises LockLost. LockNotHeld if the lease was released or lost before.

    A lock that belongs to its caller's transaction (PostgreSQL) is lost for the holder only: others still wait for the
    end of that transaction.
    """
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be the Lease of one lock, as `with` gives it, not {type(lease).__name__}.")
    hold = lease._hold
    grant = hold.grant
    if lease._released or not release.lose(hold, reason):
        raise LockNotHeld(f"{lease!r} cannot be lost: it is not held.")
    if grant is None or grant.claim.scope == "transaction":  # it ends with its transaction only
        return

    def give_away() -> None:
        with contextlib.suppress(DistlockError):
            hold.backend.release(grant)

    if owner.on_event_loop():  # releasing would wait for the loop that it blocks
        threading.Thread(target=give_away, name="distlock-release", daemon=True).start()
    else:
        give_away()


def race(fn: Callable[[], T] | Sequence[Callable[[], T]], times: int = 2, *, timeout: float = 30) -> list[T | Any]:
    """Call ``fn`` ``times`` times at once, or several functions once each, and return the results.

    Each call runs in a separate thread, with separate database connections; a barrier starts all of them. The list has
    in order the return value of each call, or the exception that it raised. TimeoutError if they have not all ended
    within ``timeout`` seconds. The threads see committed data only, not what a ``TestCase`` has written.
    """
    calls = [fn] * times if callable(fn) else list(fn)
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | BaseException:
        try:
            barrier.wait(timeout)
            return call()
        except BaseException as error:
            return error
        finally:
            connections.close_all()

    results = [Background(f"race-{number}").start(run, call) for number, call in enumerate(calls)]
    until = clock.now() + timeout
    for result in results:
        flow.run(result.wait(until - clock.now()))
    late = [f"race-{number}" for number, result in enumerate(results) if not result.done()]
    if late:
        raise TimeoutError(f"After {timeout:g} s {len(late)} of {len(calls)} calls have not ended: {', '.join(late)}.")
    return [result.result() for result in results]


def close_lock_sessions() -> None:
    """Close the lock sessions of this process, so that a database can be dropped.

    Held locks are lost. The next lock opens new sessions.
    """
    registry.close()


class LockRunnerMixin:
    """Mixin of a ``TEST_RUNNER``: closes the lock sessions before the test databases are dropped."""

    def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
        close_lock_sessions()
        super().teardown_databases(old_config, **kwargs)  # type: ignore[misc]


class LockTestRunner(LockRunnerMixin, DiscoverRunner):
    """Django's runner with :class:`LockRunnerMixin`."""
