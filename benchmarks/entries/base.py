"""What a contestant is, the one that does not lock at all, and django-distlock as a project would use it."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Body = Callable[[], object]
    Cycle = Callable[[Body], None]  # acquire, call the body once, release

LOCK_NAME = "bench"
# for entries inside one transaction, where a name taken twice would be a re-entry
LOCK_NAMES = tuple(f"{LOCK_NAME}-{number}" for number in range(25))
OURS = "django-distlock"


class Ready(NamedTuple):
    """A contestant that is connected. ``slice`` gives the nanoseconds of each of so many acquire+release pairs."""

    cycle: Cycle
    slice: Callable[[int], list[int]]


def ready(cycle: Cycle, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> Ready:
    """``around`` surrounds a whole slice and is not timed, such as an open transaction."""

    def slice_of(pairs: int) -> list[int]:
        clock, samples = time.perf_counter_ns, []
        with around():
            for _ in range(pairs):
                began = clock()
                cycle(lambda: None)
                samples.append(clock() - began)
        return samples

    return Ready(cycle, slice_of)


def awaited(runner: asyncio.Runner, cycle: Callable[[Body], Awaitable[None]]) -> Ready:
    """One that is awaited; its slices run on one event loop that is kept between them."""

    async def slice_of(pairs: int) -> list[int]:
        clock, samples = time.perf_counter_ns, []
        for _ in range(pairs):
            began = clock()
            await cycle(lambda: None)
            samples.append(clock() - began)
        return samples

    return Ready(lambda body: runner.run(cycle(body)), lambda pairs: runner.run(slice_of(pairs)))


def holding(lock: Callable[[], AbstractContextManager[Any]]) -> Cycle:
    """Make the lock anew each time, as the pages of the contestants show it."""

    def cycle(body: Body) -> None:
        with lock():
            body()

    return cycle


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One way to take and give back one lock, used from one process at a time inside the block of ``open``."""

    label: str
    open: Callable[[], AbstractContextManager[Ready]]
    uncontended: bool = True
    contended: bool = True
    exclusive: bool = True
    judged: bool = True  # by a budget; others take part in one contended round only, and not in --quick
    pairs: int = 25  # per slice; fewer where one takes milliseconds
    ours: bool = False


def entry(label: str, **traits: Any) -> Callable[[Callable[[], Iterator[Ready]]], Entry]:
    """Make an Entry of a generator that connects, yields a Ready and gives every connection back."""
    return lambda opened: Entry(label=label, open=contextmanager(opened), **traits)


@contextmanager
def django_connection(alias: str) -> Iterator[None]:
    """Connect Django's alias, and close Django's connections of this thread."""
    connections[alias].ensure_connection()
    yield
    connections.close_all()


@entry("none", uncontended=False, exclusive=False)
def no_lock() -> Iterator[Ready]:
    """Exclude nobody: the checker of lost updates must find some here, or it proves nothing for the others."""
    yield ready(lambda body: body())


def tooz(url: Callable[[], str], **traits: Any) -> Entry:
    """tooz, the one peer that has a driver for nearly every server: a lock made once, as its page shows it."""

    @entry("tooz", judged=False, **traits)
    def opened() -> Iterator[Ready]:
        from tooz import coordination

        coordinator = coordination.get_coordinator(url(), b"benchmarks")
        coordinator.start()
        lock = coordinator.get_lock(LOCK_NAME.encode())
        yield ready(holding(lambda: lock))
        coordinator.stop()

    return opened


@contextmanager
def package() -> Iterator[Any]:
    """Import it now and not before: the peers run without it. Close its sessions at once, not when they idle."""
    from django_distlock import advisory_lock
    from django_distlock.manager.registry import registry

    yield advisory_lock
    registry.close()
    connections.close_all()


def ours(alias: str, database: str = "", **traits: Any) -> list[Entry]:
    """Make our entries; those inside transactions only where the lock can be the transaction's, in ``database``."""

    @entry(OURS, ours=True, **traits)
    def anew() -> Iterator[Ready]:
        with package() as advisory_lock:
            yield ready(holding(lambda: advisory_lock(LOCK_NAME, using=alias)))

    @entry(f"{OURS}, one Lock reused", contended=False, ours=True, **traits)
    def reused() -> Iterator[Ready]:
        with package() as advisory_lock:
            lock = advisory_lock(LOCK_NAME, using=alias)
            yield ready(holding(lambda: lock))

    @entry(f"{OURS} in atomic()", contended=False, ours=True, **traits)
    def in_atomic() -> Iterator[Ready]:
        names = itertools.cycle(LOCK_NAMES)
        with package() as advisory_lock:
            cycle = holding(lambda: advisory_lock(next(names), using=alias))
            yield ready(cycle, lambda: transaction.atomic(using=database))

    @entry(f"{OURS}, whole atomic()", ours=True, **traits)
    def whole() -> Iterator[Ready]:
        with package() as advisory_lock:

            def cycle(body: Body) -> None:
                with transaction.atomic(using=database), advisory_lock(LOCK_NAME, using=alias):
                    body()

            yield ready(cycle)

    @entry(f"{OURS}, asyncio", contended=False, ours=True, **traits)
    def in_a_task() -> Iterator[Ready]:
        with asyncio.Runner() as runner, package() as advisory_lock:  # the sessions are closed before their loop

            async def cycle(body: Body) -> None:
                async with advisory_lock(LOCK_NAME, using=alias):
                    body()

            yield awaited(runner, cycle)

    return [anew, reused, *([in_atomic, whole] if database else []), in_a_task]
