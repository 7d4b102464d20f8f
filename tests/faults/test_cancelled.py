"""R7: cancelled tasks and closed event loops leave nothing held, wherever they were. And R17: nor is a release that a
renewal meets a loss."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import advisory_lock
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.signals import lock_lost, lock_released
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, holders, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock.records import Grant

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


def until_one_waits(using: str, name: str) -> None:
    try:
        eventually(lambda: waiters(using, name), "nobody waits")
    finally:
        connections.close_all()


@pytest.mark.parametrize("forgotten", [False, True], ids=["heard", "forgotten"])
@each_engine
def test_r7_a_cancel_of_a_wait_is_heard(
    using: str, forgotten: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a lock that is never free. Nobody is left in the queue of the server. "forgotten": the server has not yet
    begun with the statement when it hears of the cancel, which is sent again."""
    backend: Any = registry.entry(using).backend
    cancels = []

    async def work() -> None:
        task = asyncio.create_task(advisory_lock(name, using=using).aacquire(timeout=None))
        await asyncio.to_thread(until_one_waits, using, name)
        kind = type(backend.sessions.all()[0])
        cancel = kind.cancel

        def late(self: Any, other: Any, until: float) -> Any:
            cancels.append(other)
            if len(cancels) > forgotten:
                yield from cancel(self, other, until)

        monkeypatch.setattr(kind, "cancel", late)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        asyncio.run(work())
        eventually(lambda: not waiters(using, name), "it waits on")
        assert len(cancels) > forgotten
        child.say()
        assert child.hear() == "released"
    eventually(lambda: not holders(using, name), "a cancelled wait got the lock")


@each_engine
def test_r7_a_loop_that_is_closed_under_its_waiters(using: str, name: str) -> None:
    """The tasks are never run again, not even to be cancelled. What they waited for is not held by anybody."""
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(advisory_lock(name, using=using).aacquire(timeout=30)) for _ in range(3)]

        loop.run_until_complete(asyncio.to_thread(until_one_waits, using, name))
        for task in tasks:
            task._log_destroy_pending = False  # a warning of asyncio's, meant for others
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        del tasks, task, loop
        gc.collect()
        child.say()
        assert child.hear() == "released"
    eventually(lambda: not holders(using, name), "held by a task of a closed loop")
    with advisory_lock(name, using=using, timeout=10):
        pass
    assert not list(lock_table.everything())


def test_r17_a_renewal_in_the_midst_of_a_release_is_no_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the lock back already, and the release is about to hear of it."""
    backend: Any = registry.entry("memory").backend
    given, renewed = threading.Event(), threading.Event()
    heard: list[str] = []

    def lost(**facts: Any) -> None:
        heard.append("lost")

    def released(**facts: Any) -> None:
        heard.append("released")

    def release(grant: Grant) -> bool:
        result = type(backend).release(backend, grant)
        given.set()
        assert renewed.wait(10)
        return result

    monkeypatch.setattr(backend, "release", release)
    lock_lost.connect(lost)
    lock_released.connect(released)
    try:
        lease = advisory_lock(name, using="memory").acquire()
        thread = threading.Thread(target=lease.release)
        grant = lease._grant
        thread.start()
        assert given.wait(10)
        keepalive._renew(lease._hold, grant, 30)
        renewed.set()
        thread.join()
        assert heard == ["released"]
        assert not lease.lost
    finally:
        lock_lost.disconnect(lost)
        lock_released.disconnect(released)


# the machine has no thread to give for a moment, as at a limit of processes


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Threads of the library's cannot be started until it is undone."""
    start = threading.Thread.start

    def maybe(thread: threading.Thread) -> None:
        if thread.name.startswith(("distlock-keepalive", "distlock-leader")):
            raise RuntimeError("can't start new thread")
        start(thread)

    registry.close()
    eventually(lambda: not keepalive.running, "the thread goes on without work")
    monkeypatch.setattr(threading.Thread, "start", maybe)
    return monkeypatch


@pytest.mark.parametrize("ttl", [None, 6.0])
def test_r16_nothing_is_acquired_that_nobody_looks_after(name: str, ttl: float | None, no_thread: Any) -> None:
    """And the next one is looked after. ``ttl``: on the short way of an acquire, and on the long one."""
    lock = advisory_lock(name, using="redis", **({} if ttl is None else {"ttl": ttl}))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="start new thread"):
            lock.acquire(timeout=10)
    assert not keepalive.running
    no_thread.undo()
    with lock as lease:
        assert keepalive.running
        lease.ensure_held()
