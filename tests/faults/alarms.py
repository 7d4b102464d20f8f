"""Exceptions of SIGALRM at random moments of acquire and release, as a task's soft time limit raises them (R7)."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.support.child import Link

# A lease that an exception has lost ends with its TTL: so many seconds in these tests.
TTL = 3.0
# What is put right is put right within this time; seconds.
SOON = 3.0
NAMES = 12
ENTRANCES = ("__exit__", "release")
# No wait takes longer, so that not every alarm comes in the middle of one; seconds.
TIMEOUT = 0.02


class TimeLimit(Exception):
    """That of a task."""


def _ring(number: int, frame: FrameType | None) -> None:
    """Raise TimeLimit, but not at the entrance of ``__exit__`` or ``release``: before its first line a function can do
    nothing about an exception, and the lock stays held."""
    code = None if frame is None else frame.f_code
    if code is _ring.__code__ or (code and code.co_name in ENTRANCES and frame.f_lineno == code.co_firstlineno):
        signal.setitimer(signal.ITIMER_REAL, 1e-5)
    else:
        raise TimeLimit


def _ways(using: str, base: str, timeout: float) -> list[Callable[[], Any]]:
    """The ways of taking and leaving one or two of the NAMES, as a program does that catches its time limit."""
    from django_distlock import advisory_lock, lock_all
    from django_distlock.manager.registry import registry

    backend = registry.entry(using).backend
    options: dict[str, Any] = {"ttl": TTL} if backend.supports_ttl else {}

    def lock(**more: Any) -> Any:
        return advisory_lock(f"{base}{random.randrange(NAMES)}", using=using, timeout=timeout, **options, **more)

    def block() -> None:
        with lock():
            pass

    def lease() -> None:
        taken = lock().acquire()
        try:
            pass
        finally:
            taken.release()

    def again() -> None:
        one = lock()
        with one, one:
            pass

    def several() -> None:
        names = {f"{base}{random.randrange(NAMES)}" for _ in range(2)}
        with lock_all(names, using=using, timeout=timeout, **options):
            pass

    def readers() -> None:
        with lock(shared=True):
            pass

    return [block, lease, again, several, *([readers] if backend.supports_shared else [])]


def _once(work: Callable[[], Any], seconds: float) -> bool:
    """Call ``work`` with an alarm after ``seconds``. True if the alarm rang inside of it."""
    from django_distlock import DistlockError

    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeLimit:
        return True
    except KeyError as error:  # of threading.Thread.start(), interrupted when the thread has begun already
        if not isinstance(error.__context__, TimeLimit):
            raise
        return True
    except DistlockError:  # busy, or lost with the session that another alarm has ended
        pass
    return False


def interrupt(link: Link, using: str, base: str, count: int, seed: int) -> None:
    """Be interrupted ``count`` times, say how often, take every lock once more, say so, and live on until told."""
    random.seed(seed)
    usual = []
    for way in _ways(using, base, 10):  # the first call connects
        times = []
        for _ in range(5):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
        usual.append(sorted(times)[2])
    signal.signal(signal.SIGALRM, _ring)
    ways = list(zip(_ways(using, base, TIMEOUT), usual, strict=True))
    rang = 0
    until = time.monotonic() + 0.2 * count + 30
    while rang < count and time.monotonic() < until:
        way, seconds = random.choice(ways)
        rang += _once(way, max(1e-6, random.uniform(0, 1.2 * seconds)))
    link.say(rang)
    link.hear()
    from django_distlock.manager.lock_table import lock_table

    link.say([f"{hold.key.name}: {hold.state.name}" for hold in lock_table.all()])
    link.hear()


def take_all(using: str, base: str, seconds: float) -> list[str]:
    """The locks that cannot be had within so many seconds."""
    from django_distlock import DistlockError, advisory_lock

    until, missing = time.monotonic() + seconds, []
    for number in range(NAMES):
        try:
            lock = advisory_lock(f"{base}{number}", using=using)
            lock.acquire(timeout=max(0.5, until - time.monotonic())).release()
        except DistlockError as error:
            missing.append(f"{number}: {error}")
    return missing


def take_all_elsewhere(link: Link, using: str, base: str, seconds: float) -> None:
    """:func:`take_all` in another process."""
    link.say(take_all(using, base, seconds))
