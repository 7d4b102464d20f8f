"""R5 and R6: one deadline per call, kept; busy, lost and unreachable are three different errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from django_distlock import (
    BackendUnavailable,
    DistlockError,
    LockLost,
    LockNotAcquired,
    LockTimeout,
    advisory_lock,
)
from django_distlock.backends.memory import MemoryBackend
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conformance.actors import PATIENCE, Face
from tests.conformance.watching import asking_here, waiting_here
from tests.conftest import eventually
from tests.faults.server import noted
from tests.support.timing import off_processor, ready_since_start, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.actors import Actor

pytestmark = pytest.mark.alone

AT_ONCE = 50


class Try(NamedTuple):
    """Seconds: how long it took, and how long its thread was ready meanwhile without a processor."""

    took: float
    off: float


def _timed(face: Face, lock: Any, rounds: int) -> Any:
    """``rounds`` tries of 0.5 s."""

    def threads() -> list[Try]:
        return [_measure(lock) for _ in range(rounds)]

    async def tasks() -> list[Try]:
        return [await _ameasure(lock) for _ in range(rounds)]

    return threads if face.kind == "sync" else tasks


def _measure(lock: Any) -> Try:
    off, began = off_processor(), time.monotonic()
    with too_slow_to_answer(), pytest.raises(LockTimeout, match=r"after 0\.5 s"):
        lock.acquire(timeout=0.5)
    return Try(time.monotonic() - began, off_processor() - off)


async def _ameasure(lock: Any) -> Try:
    off, began = off_processor(), time.monotonic()
    with too_slow_to_answer(), pytest.raises(LockTimeout, match=r"after 0\.5 s"):
        await lock.aacquire(timeout=0.5)
    return Try(time.monotonic() - began, off_processor() - off)


@contextlib.contextmanager
def too_slow_to_answer() -> Iterator[None]:
    """A server on this machine that does not say within half a second that a lock is busy had no processor."""
    try:
        yield
    except BackendUnavailable:
        if ready_since_start() < 0.5:
            raise


@pytest.mark.parametrize(("names", "rounds"), [(AT_ONCE, 2), (1, 1)], ids=["many names", "one name"])
def test_r5_half_a_second_is_half_a_second(
    face: Face, rival: Any, using: str, name: str, names: int, rounds: int
) -> None:
    """100 tries against locks that another process holds, and a crowd at one lock: p99 within 50 ms."""
    held = [rival.acquire(using, f"{name}{number}") for number in range(names)]
    locks = [advisory_lock(f"{name}{number % names}", using=using) for number in range(AT_ONCE)]
    tries = [actor.submit(_timed(face, lock, rounds)) for actor, lock in zip(face.actors(AT_ONCE), locks, strict=True)]
    each = sorted((one for future in tries for one in future.result(PATIENCE)), key=lambda one: one.took - one.off)
    for number in held:
        rival.release(number)
    p99 = each[max(0, int(len(each) * 0.99) - 1)]
    assert min(one.took for one in each) >= 0.5
    within(p99.took - p99.off, 0.55, what=each[-5:])


def test_r5_zero_does_not_wait(me: Actor, rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    lock = advisory_lock(name, using=using)
    assert me.try_acquire(lock) is None  # connects
    began = time.monotonic()
    for _ in range(10):
        with pytest.raises(LockNotAcquired) as busy:
            me.acquire(lock, timeout=0)
        assert type(busy.value) is LockNotAcquired
        assert str(busy.value) == f"The lock {name!r} of alias {using!r} is held by another caller."
    within(time.monotonic() - began, 0.5)
    rival.release(held)


def test_r5_none_waits_until_the_release(me: Actor, rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    waiting = me.start(advisory_lock(name, using=using, timeout=None), "acquire")
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, "nobody waits")
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    rival.release(held)
    me.release(waiting.result(5))


def test_r5_the_timeout_of_the_call_goes_before_the_lock_s(me: Actor, rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    patient = advisory_lock(name, using=using, timeout=60)
    assert me.try_acquire(patient) is None
    with pytest.raises(LockTimeout):
        me.acquire(patient, timeout=0.3)
    impatient = advisory_lock(name, using=using, timeout=0.3)
    with pytest.raises(LockTimeout, match=r"after 0\.3 s"):
        me.acquire(impatient)
    with pytest.raises(LockTimeout):
        me.enter(impatient)
    assert me.try_acquire(patient, timeout=0.3) is None
    rival.release(held)


def test_r5_unset_is_the_alias_s_timeout(me: Actor, other: Actor, using: str, name: str, settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "TIMEOUT": 0.07}}
    lease = me.acquire(advisory_lock(name, using=using, timeout=10))
    began = time.monotonic()
    with pytest.raises(LockTimeout, match=r"after 0\.07 s"):
        other.acquire(advisory_lock(name, using=using))
    within(time.monotonic() - began, 0.12, least=0.07)
    me.release(lease)


def test_r5_the_deadline_holds_behind_waiters_of_this_process(
    me: Actor, face: Face, rival: Any, using: str, name: str
) -> None:
    """The local queue and the engine share one deadline."""
    held = rival.acquire(using, name)
    lock = advisory_lock(name, using=using)
    first, second = face.actors(2)
    patient = first.start(lock, "acquire", timeout=PATIENCE)
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, "nobody waits")
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        second.acquire(lock, timeout=0.2)
    within(time.monotonic() - began, 0.25, least=0.2)
    # the head of the queue leaves half way: who follows has its own time left, no more
    third = second.start(lock, "acquire", timeout=PATIENCE)
    eventually(lambda: asking_here(name) + waiting_here(name) == 2, "the second does not wait")
    began = time.monotonic()
    rival.release(held)
    first.release(patient.result(PATIENCE))
    lease = third.result(PATIENCE)
    within(time.monotonic() - began, 0.4)
    second.release(lease)


def test_r5_the_deadline_goes_on_when_the_one_ahead_gives_up(face: Face, rival: Any, using: str, name: str) -> None:
    """The time in the queue of this process is a part of it."""
    held = rival.acquire(using, name)
    lock = advisory_lock(name, using=using)
    first, second = face.actors(2)
    assert first.try_acquire(lock) is None  # connects
    impatient = first.start(lock, "acquire", timeout=0.3)
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, "nobody waits")
    began = time.monotonic()
    follower = second.start(lock, "acquire", timeout=0.5)
    for waiting in (impatient, follower):
        with pytest.raises(LockTimeout):
            waiting.result(PATIENCE)
    within(time.monotonic() - began, 0.55, least=0.5)
    rival.release(held)


def test_r5_a_free_lock_is_taken_without_waiting(me: Actor, using: str, name: str) -> None:
    """Also by the first call, which connects."""
    for timeout in (0, 0.5, None):
        began = time.monotonic()
        lease = me.acquire(advisory_lock(name, using=using), timeout=timeout)
        if timeout:
            within(time.monotonic() - began, 0.25)
        me.release(lease)


def test_r5_asyncio_goes_on_while_a_task_waits(rival: Any, using: str, name: str) -> None:
    """Waiting does not block the event loop."""
    held = rival.acquire(using, name)
    alone: list[float] = []
    beats: list[float] = []

    async def beat(times: list[float]) -> None:
        while True:
            times.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main() -> None:
        await advisory_lock(name, using=using).atry_acquire()  # connects
        task = asyncio.create_task(beat(alone))
        await asyncio.sleep(0.4)
        task.cancel()
        task = asyncio.create_task(beat(beats))
        with pytest.raises(LockTimeout):
            await advisory_lock(name, using=using).aacquire(timeout=0.4)
        task.cancel()

    for _ in range(3):  # the best of three: the machine may stand still for a part of one
        alone.clear()
        beats.clear()
        asyncio.run(main())
        longest = max((later - earlier for earlier, later in itertools.pairwise(beats)), default=math.inf)
        if len(beats) > len(alone) / 3 and longest <= 0.1:  # 80 of each on a machine that does nothing else
            break
    rival.release(held)
    assert len(beats) > len(alone) / 3
    within(longest, 0.1)


def test_r6_busy_and_lost_and_down_are_no_relatives() -> None:
    kinds = [LockNotAcquired, LockLost, BackendUnavailable]
    for kind in kinds:
        assert issubclass(kind, DistlockError)
        assert [other for other in kinds if issubclass(kind, other)] == [kind]


@pytest.mark.cold
@pytest.mark.parametrize(
    ("using", "database"),
    [
        ("postgres", "postgres"),
        ("mysql", "mariadb"),
        ("leasetable_postgres", "postgres"),
        ("leasetable_mariadb", "mariadb"),
    ],
)
@pytest.mark.parametrize(
    "broken", [{"PORT": "1"}, {"PASSWORD": "wrong", "USER": "nobody"}, {"NAME": "no_such_database"}], ids=repr
)
def test_r6_a_server_that_refuses_is_unavailable(
    databases: None, face: Face, using: str, database: str, name: str, broken: dict[str, str], settings: Any
) -> None:
    """Whatever the driver says comes as BackendUnavailable, with the driver's error as its cause."""
    wrong = f"{database}_wrong"
    options = {**settings.DISTLOCK[using]["OPTIONS"], "database": wrong}
    with _alias(wrong, {**settings.DATABASES[database], **broken}):
        settings.DISTLOCK = {**settings.DISTLOCK, "broken": {**settings.DISTLOCK[using], "OPTIONS": options}}
        for attempt in ("acquire", "try_acquire"):
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match=r"'broken'") as down:
                getattr(face.actor(), attempt)(advisory_lock(name, using="broken"), timeout=0.5)
            within(time.monotonic() - began, 0.55)
            assert down.value.__cause__ is not None
            assert not isinstance(down.value.__cause__, DistlockError)


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r6_a_server_that_refuses_the_statement_is_unavailable(
    databases: None, face: Face, using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither busy, which would let an on_busy go ahead, nor an error of the driver."""
    me = face.actor()
    me.acquire(advisory_lock(name, using=using)).release()
    backend: Any = registry.entry(using).backend

    def refuse(*args: Any) -> Any:
        raise ServerError(0, "not today")

    kind = type(backend.sessions.open_shared)
    monkeypatch.setattr(kind, "lock", refuse)
    monkeypatch.setattr(kind, "lock_fast", refuse)
    for attempt, timeout in (("acquire", 5), ("try_acquire", 0)):
        with pytest.raises(BackendUnavailable, match="not today"):
            getattr(me, attempt)(advisory_lock(name, using=using), timeout=timeout)


class _alias:
    """A database alias for the time of a block."""

    def __init__(self, alias: str, parameters: dict[str, Any]) -> None:
        self.alias, self.parameters = alias, parameters

    def __enter__(self) -> None:
        from django.db import connections

        connections.settings[self.alias] = self.parameters

    def __exit__(self, *error: object) -> None:
        from django.db import connections

        registry.reset()
        del connections.settings[self.alias]


class SlowToMake(MemoryBackend):
    """Like one that imports its driver when it is made."""

    def __init__(self, *args: Any) -> None:
        threading.Event().wait(0.3)
        super().__init__(*args)


@pytest.mark.cold
@pytest.mark.parametrize("using", ["slow"])
def test_r5_making_the_backend_takes_none_of_the_callers_time(face: Face, settings: Any, using: str, name: str) -> None:
    """The first of a process would be told that somebody else had the lock, though nobody was asked."""
    backend = f"{__name__}.{SlowToMake.__qualname__}"
    settings.DISTLOCK = {**settings.DISTLOCK, using: {"BACKEND": backend}}
    face.actor().acquire(advisory_lock(name, using=using), timeout=0.2).release()


def test_r6_a_bug_in_a_callback_is_no_lock_error(using: str, name: str) -> None:
    """The body's own exception passes through unchanged."""
    with pytest.raises(ZeroDivisionError), advisory_lock(name, using=using):
        _ = 1 / 0
    assert threading.current_thread().is_alive()
    advisory_lock(name, using=using).acquire(timeout=0).release()


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r6_a_crowd_at_a_server_that_answers_is_busy_and_not_unavailable(
    databases: None, face: Face, using: str, name: str
) -> None:
    """Whoever spends all the time behind others of this process has no word from the server, which is well."""
    backend: Any = registry.entry(using).backend
    lease = face.actor().acquire(advisory_lock(name, using=using))
    session = lease._grant.session
    crowded = face.actor()
    crowded.try_acquire(advisory_lock(name + "first", using=using)).release()
    eventually(lambda: noted(using, name), "the name is not written down, of which the server would tell")
    session.mutex.acquire(0)
    try:
        for _ in range(2):
            waiting = crowded.start(advisory_lock(name + "other", using=using), "try_acquire", timeout=0.2)
            while not waiting.done():
                session.replied_at = monotonic()
                threading.Event().wait(0.01)
            assert waiting.result() is None
        with pytest.raises(BackendUnavailable, match="did not answer within"):
            crowded.try_acquire(advisory_lock(name + "other", using=using), timeout=0.6)
    finally:
        session.mutex.release()
    assert backend.sessions.all()
    lease.release()
