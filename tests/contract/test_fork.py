"""R22: the child of a fork holds nothing of its parent's, and takes nothing from it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.contract.actors import Actor
from tests.contract.conftest import across_processes
from tests.contract.rivals import RivalError

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 30
# A fork while other threads run is what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(work: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Fork, run ``work`` in the child, and end it by os._exit; it must not fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(SECONDS)  # a child that hangs is ended
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    meanwhile()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def test_r22_the_child_s_copy_of_a_lease_is_not_held(other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    lease = lock.acquire()

    def child() -> None:
        assert (lease.held, lease.lost) == (False, True)
        with pytest.raises(LockLost, match="belongs to the parent"):
            lease.ensure_held()
        assert lock_table.all() == []
        lease.release()
        lease.release()

    in_child(child)
    assert other.try_acquire(lock) is None
    lease.ensure_held()
    lease.release()
    other.release(other.acquire(lock, timeout=0))


@across_processes
def test_r22_the_child_s_end_frees_nothing(rival: Any, using: str, name: str) -> None:
    """By os._exit, by the end of a with block that the parent entered, and by closing everything."""
    lock = advisory_lock(name, using=using)

    def closes_everything() -> None:
        registry.close()
        gc.collect()

    with lock as lease:
        for work in (lambda: None, lambda: lock.__exit__(None, None, None), closes_everything):
            in_child(work)
            lease.ensure_held()
        with pytest.raises(RivalError, match="LockNotAcquired"):
            rival.acquire(using, name, timeout=0)
        assert lease.held
    rival.release(rival.acquire(using, name, timeout=0))


@across_processes
def test_r22_the_child_has_locks_of_its_own(using: str, name: str) -> None:
    lock, free = advisory_lock(name, using=using), advisory_lock(name + "free", using=using)
    (heard, says), (hears, reply) = os.pipe(), os.pipe()

    def child() -> None:
        assert threading.active_count() == 1
        with free as lease:
            assert any(thread.name == "distlock-keepalive" for thread in threading.enumerate())
            assert lock.try_acquire() is None  # not a re-entry: it is the parent's
            lease.ensure_held()
            os.write(says, b"x")
            assert os.read(hears, 1) == b"x"
        with free:
            pass

    def parent() -> None:
        os.close(says)  # so that the end of the child can be read
        assert os.read(heard, 1) == b"x"
        assert free.try_acquire() is None
        os.write(reply, b"x")

    with lock as lease:
        in_child(child, parent)
        with free:
            lease.ensure_held()
    for fd in (heard, hears, reply):
        os.close(fd)


@pytest.mark.tier2
def test_r22_a_fork_while_threads_take_locks(using: str, name: str) -> None:
    """No mutex of ours is left locked in the child by a thread that does not exist there."""
    stop = threading.Event()

    def churn(number: int) -> None:
        lock = advisory_lock(f"{name}{number}", using=using, timeout=SECONDS)
        while not stop.is_set():
            with lock:
                pass

    actors = [Actor() for _ in range(3)]
    works = [actor.submit(churn, number % 2) for number, actor in enumerate(actors)]

    def child() -> None:
        with advisory_lock(name + "child", using=using) as lease:
            lease.ensure_held()

    try:
        for _ in range(5):
            in_child(child)
    finally:
        stop.set()
        for work, actor in zip(works, actors, strict=True):
            work.result(SECONDS)
            actor.close()
