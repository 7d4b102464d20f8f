"""R7: whatever moment of an acquire or a release the exception of a signal meets, as that of a task's soft time limit,
three seconds later every lock can be had by other processes. A lease may live for as long as its TTL."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import DistlockError, advisory_lock, lock_all
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.matrix import MATRIX, Entry
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.support.child import Link

# `DISTLOCK_ALARMS=2000 pytest tests/faults/test_alarms.py` for more.
COUNT = int(os.environ.get("DISTLOCK_ALARMS", "200"))
FIRST = {"memory", "leasetable", "postgres", "redis"}
# A lease that an exception has lost ends with its TTL; what is put right is put right SOON. Seconds.
TTL = SOON = 3.0
NAMES = 12
ENTRANCES = ("__exit__", "release")
# No wait takes longer, so that not every alarm comes in the middle of one; seconds.
TIMEOUT = 0.02


class TimeLimit(Exception):
    """That of a task."""


def ring(number: int, frame: FrameType | None) -> None:
    """Raise TimeLimit, but not at the entrance of ``__exit__`` or ``release``: before its first line a function can do
    nothing about an exception, and the lock stays held."""
    code = None if frame is None else frame.f_code
    if code is ring.__code__ or (code and code.co_name in ENTRANCES and frame.f_lineno == code.co_firstlineno):
        signal.setitimer(signal.ITIMER_REAL, 1e-5)
    else:
        raise TimeLimit


def ways_of(using: str, base: str, timeout: float) -> list[Callable[[], Any]]:
    """The ways of taking and leaving one or two of the NAMES."""
    backend = registry.entry(using).backend
    options: dict[str, Any] = {"using": using, "timeout": timeout, **({"ttl": TTL} if backend.supports_ttl else {})}

    def names(count: int) -> list[str]:
        return [f"{base}{number}" for number in random.sample(range(NAMES), count)]

    def enter(lock: Any) -> None:
        with lock:
            pass

    def again() -> None:
        lock = advisory_lock(*names(1), **options)
        with lock, lock:
            pass

    return [
        lambda: enter(advisory_lock(*names(1), **options)),
        lambda: advisory_lock(*names(1), **options).acquire().release(),
        again,
        lambda: enter(lock_all(names(2), **options)),
        lambda: enter(advisory_lock(*names(1), **options, shared=backend.supports_shared)),
    ]


def rings(work: Callable[[], Any], seconds: float) -> bool:
    """Call ``work`` with an alarm after ``seconds``. True if the alarm rang inside of it."""
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


def be_interrupted(link: Link, using: str, base: str, seed: int) -> None:
    """COUNT times; say how often, then what is left in the table of the process, and live on until told."""
    random.seed(seed)
    usual = []
    for way in ways_of(using, base, 10):  # the first call connects
        times = []
        for _ in range(5):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
        usual.append(sorted(times)[2])
    signal.signal(signal.SIGALRM, ring)
    ways = list(zip(ways_of(using, base, TIMEOUT), usual, strict=True))
    rang = 0
    until = time.monotonic() + 0.2 * COUNT + 30
    while rang < COUNT and time.monotonic() < until:
        way, seconds = random.choice(ways)
        rang += rings(way, max(1e-6, random.uniform(0, 1.2 * seconds)))
    link.say(rang)
    link.hear()
    link.say([f"{hold.key.name}: {hold.state.name}" for hold in lock_table.all()])
    link.hear()


def take_all(link: Link, using: str, base: str) -> None:
    """Say which locks another process cannot have within the TTL."""
    until, missing = time.monotonic() + TTL, []
    for number in range(NAMES):
        try:
            lock = advisory_lock(f"{base}{number}", using=using)
            lock.acquire(timeout=max(0.5, until - time.monotonic())).release()
        except DistlockError as error:
            missing.append(f"{number}: {error}")
    link.say(missing)


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=entry.using, marks=() if entry.using in FIRST else pytest.mark.tier2) for entry in MATRIX],
)
def test_r7_alarms_at_random_moments_leave_nothing_held(entry: Entry, name: str) -> None:
    seed = random.randrange(10**6)
    with Child(be_interrupted, entry.using, name, seed) as child:
        assert child.hear(0.2 * COUNT + 60) >= COUNT / 2, "hardly an alarm rang inside"
        time.sleep(SOON)
        child.say()
        assert child.hear() == [], f"seed {seed}: the table of the process is not empty"
        if entry.processes:
            with Child(take_all, entry.using, name) as other:
                assert other.hear() == [], f"seed {seed}"
        child.say()
