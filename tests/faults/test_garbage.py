"""Generators and coroutines that hold a lock and end as cyclic garbage: the collector closes them at any allocation, in
the midst of our own bookkeeping, in a thread that has the very mutex their clean-up needs.

All of it in processes of their own: what went wrong here would stand still for ever.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.concurrency import finalizers
from django_distlock.locks import lock as locks
from django_distlock.manager import interrupted, keepalive
from django_distlock.manager import lock_table as lock_table_module
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.usefixtures("databases")


def litter(enter: Callable[[], Generator[Any, Any, Any]]) -> None:
    """Start a generator and leave it as cyclic garbage."""
    generator = enter()
    next(generator)
    cycle = [generator]
    cycle.append(cycle)  # type: ignore[arg-type]


def inside(lock: Any) -> Generator[Any, Any, Any]:
    with lock:
        yield


def with_a_lease(lock: Any) -> Generator[Any, Any, Any]:
    lease = lock.acquire()
    try:
        yield
    finally:
        lease.release()


class Finalized:
    def __init__(self, lease: Any) -> None:
        self.lease = lease

    def __del__(self) -> None:
        self.lease.release()


def with_an_object(lock: Any) -> Generator[Any, Any, Any]:
    keeper = Finalized(lock.acquire())
    yield
    del keeper


def in_a_task(lock: Any) -> Generator[Any, Any, Any]:
    async def hold() -> None:
        async with lock:
            await asyncio.Event().wait()

    async def begin(coroutine: Any) -> None:
        coroutine.send(None)

    if lock.using != "memory":
        raise NotImplementedError("only where an acquire awaits nothing")
    coroutine = hold()
    asyncio.run(begin(coroutine))
    yield
    coroutine.close()


class Collecting:
    """Calls the collector once, when ``name`` of ``target`` is called next."""

    def __init__(self, target: Any, name: str) -> None:
        self.target, self.name, self.original = target, name, getattr(target, name)
        self.collected = 0
        setattr(target, name, self._call)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        setattr(self.target, self.name, self.original)
        gc.collect()
        self.collected += 1
        return self.original(*args, **kwargs)


def collect_in_entries() -> Collecting:
    class Open(OrderedDict[Any, Any]):
        pass

    kept = Open(locks.open_blocks._open)
    locks.open_blocks._open = kept
    return Collecting(kept, "pop")  # under the mutex


PLACES: dict[str, Callable[[], Collecting]] = {
    "holdings": lambda: Collecting(lock_table_module, "WaitQueue"),
    "holdings, ending": lambda: Collecting(lock_table, "_end"),
    "entries": collect_in_entries,
    "keepalive": lambda: Collecting(keepalive.keepalive._condition, "notify"),
    "memory": lambda: Collecting(registry.entry("memory").backend, "_live"),
}
KINDS = {kind.__name__: kind for kind in (inside, with_a_lease, with_an_object, in_a_task)}


def collect_in_the_midst(link: Any, using: str, name: str, place: str, kind: str) -> None:
    """In a child: hold ``name`` in garbage, collect it amid the acquire and the release of another lock."""
    gc.disable()
    lock = advisory_lock(name, using=using)
    litter(lambda: KINDS[kind](lock))
    spot = PLACES[place]()

    def work() -> None:
        keepalive.keepalive.wake_at(0.0)
        with advisory_lock(f"{name}-other", using=using):
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    if thread.is_alive() or not spot.collected:
        link.say([spot.collected, "stands still" if thread.is_alive() else "never came by"])
        return
    eventually(lambda: not list(lock_table.everything()), "still held")
    with advisory_lock(name, using=using, timeout=5):
        link.say([spot.collected, "goes on"])


@pytest.mark.parametrize(
    ("place", "kind"), [*((place, "inside") for place in PLACES), *(("holdings", kind) for kind in KINDS)]
)
def test_garbage_in_the_midst_of_bookkeeping(place: str, kind: str, name: str) -> None:
    with Child(collect_in_the_midst, "memory", name, place, kind) as child:
        assert child.hear(timeout=20) == [1, "goes on"]


@pytest.mark.parametrize("using", ["leasetable", "postgres", "mysql"])
def test_garbage_of_an_engine(using: str, name: str) -> None:
    with Child(collect_in_the_midst, using, name, "holdings, ending", "inside") as child:
        assert child.hear(timeout=20) == [1, "goes on"]


def collect_in_a_statement(link: Any, using: str, name: str) -> None:
    """In a child: collect it while this thread has the mutex of the session that the lock lives on."""
    gc.disable()
    lock = advisory_lock(name, using=using)
    litter(lambda: inside(lock))
    session = registry.entry(using).backend.sessions.open_shared  # type: ignore[attr-defined]
    spot = Collecting(session, "lock_fast")

    def work() -> None:
        with advisory_lock(f"{name}-other", using=using, timeout=None):
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    eventually(lambda: not list(lock_table.everything()), "still held")
    link.say([spot.collected, thread.is_alive(), session.dead])


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_garbage_in_the_midst_of_a_statement(using: str, name: str) -> None:
    """The release waits for the mutex that its own thread has; the session would be ended for it."""
    with Child(collect_in_a_statement, using, name) as child:
        assert child.hear(timeout=20) == [1, False, None]


def collect_a_waiting_coroutine(link: Any, using: str, name: str, place: str) -> None:
    """In a child: a coroutine in the midst of an acquire is garbage, and collected under a mutex that it needs."""
    gc.disable()

    async def main() -> None:
        held = await advisory_lock(name, using=using).aacquire()
        queue: deque[Any] = deque()

        def begin() -> None:
            coroutine: Any = advisory_lock(f"{name}-waiting", using=using).aacquire(timeout=20)
            queue.append(coroutine.send(None))
            cycle = [coroutine]
            cycle.append(cycle)

        blocker = threading.Thread(target=lambda: advisory_lock(f"{name}-waiting", using=using).acquire())
        blocker.start()
        await asyncio.to_thread(blocker.join)
        begin()
        spot = PLACES[place]()
        other = await advisory_lock(f"{name}-other", using=using).aacquire()
        await other.arelease()
        await held.arelease()
        await asyncio.to_thread(eventually, lambda: len(list(lock_table.everything())) == 1, "it still waits")
        link.say([spot.collected, [hold.state.name for hold in lock_table.everything()]])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(8)
    if thread.is_alive():
        link.say("stands still")


@pytest.mark.parametrize("using", ["memory", "postgres"])
def test_garbage_that_waits_leaves_the_queue(using: str, name: str) -> None:
    with Child(collect_a_waiting_coroutine, using, name, "holdings") as child:
        assert child.hear(timeout=20) == [1, ["HELD"]]


def test_a_collection_is_seen_in_its_own_thread_only() -> None:
    seen: list[bool] = []

    class Looks:
        def __del__(self) -> None:
            thread = threading.Thread(target=lambda: seen.append(finalizers.here.collecting))
            seen.append(finalizers.here.collecting)
            thread.start()
            thread.join()

    looks: Any = Looks()
    looks.itself = looks
    del looks
    gc.collect()
    assert seen == [True, False]
    assert not finalizers.here.collecting


def test_what_is_left_for_later_is_done_in_order_and_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    finalizers.later(done.append, 1)
    finalizers.later(done.append)
    finalizers.later(done.append, 2)
    eventually(lambda: done == [1, 2], f"not done: {done}")
    assert "garbage collector" in caplog.text


def test_r1_what_the_collector_has_released_is_not_released_twice(name: str) -> None:
    """The next block of the same lock object is another caller's, who keeps it."""
    lock = advisory_lock(name, using="memory")
    litter(lambda: inside(lock))
    gc.collect()
    eventually(lambda: not lock_table.all(), "the collector has released nothing")
    with lock as lease:
        interrupted.look()
        eventually(lambda: not any(thread.name == "distlock-release" for thread in threading.enumerate()), "at work")
        assert lease.held
