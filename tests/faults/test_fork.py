"""R22: a child never releases or closes its parent's lock, and its copy of a Lease is not held.

All forks happen in a process of their own, never in that of pytest.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, holders, session_of
from tests.support.processes import Child
from tests.support.timing import within
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
each_backend = pytest.mark.parametrize(
    "using", ["memory", *SESSION_LOCKS, "leasetable", "leasetable_postgres", "leasetable_mariadb", "redis"]
)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process; the children do it themselves."""
    give_time(monkeypatch.setattr)


def forked(body: Callable[[], Any]) -> int:
    """Run ``body`` in a forked child that ends as a program does, by sys.exit; its exit status."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            if status:
                os._exit(status)
        sys.exit(0)  # atexit handlers, finalizers of the drivers and all
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_while_holding(link: Any, using: str, name: str) -> None:
    """In a child of the test: a lock taken without waiting and one that was waited for; then forks."""
    give_time()
    first = advisory_lock(name, using=using).acquire()
    link.say("waiting")
    second = advisory_lock(name + "-waited", using=using, timeout=20).acquire()
    ears: list[str] = []
    first.on_lost(lambda lease: ears.append(lease.name))

    def child() -> None:
        for lease in (first, second):
            assert lease.lost
            assert not lease.held
            with pytest.raises(LockLost, match="belongs to the parent"):
                lease.ensure_held()
            lease.release()
        assert advisory_lock(name, using=using).try_acquire() is None or using == "memory"
        with advisory_lock(name + "-own", using=using) as own:
            own.ensure_held()

    statuses = [forked(child) for _ in range(3)]
    statuses += [forked(lambda: None), forked(lambda: os._exit(0))]
    link.say(statuses)
    link.hear()
    first.ensure_held()
    second.ensure_held()
    assert not ears
    first.release()
    second.release()
    link.say("released")


@pytest.mark.tier2
@each_engine
def test_r22_children_leave_the_locks_of_their_parent_alone(using: str, name: str) -> None:
    """On the shared session and on one that was waited on; children that look, that lock, and that only end."""
    with Child(hold, using, name + "-waited") as other:
        assert other.hear() == "held"
        with Child(fork_while_holding, using, name) as parent:
            assert parent.hear() == "waiting"
            other.say()
            assert other.hear() == "released"
            assert parent.hear() == [0] * 5
            assert len(holders(using, name)) == 1
            assert len(holders(using, name + "-waited")) == 1
            assert advisory_lock(name, using=using).try_acquire() is None
            parent.say()
            assert parent.hear() == "released"
    eventually(lambda: not holders(using, name), "still held")


def fork_with_copies(link: Any, using: str, name: str) -> None:
    """In a child of the test, for every backend: the child's copy is not held, the parent's lock is."""
    give_time()
    lease = advisory_lock(name, using=using).acquire()

    def child() -> None:
        assert lease.lost
        lease.release()
        if using != "memory":
            assert advisory_lock(name, using=using).try_acquire() is None
        with advisory_lock(name + "-own", using=using):
            pass

    link.say(forked(child))
    lease.ensure_held()
    lease.release()
    with advisory_lock(name, using=using):
        link.say("released")


@each_backend
def test_r22_the_copy_of_a_lease_is_not_held(using: str, name: str) -> None:
    with Child(fork_with_copies, using, name) as parent:
        assert parent.hear() == 0
        assert parent.hear() == "released"


def fork_inside_with(link: Any, using: str, name: str) -> None:
    """In a child of the test: fork in the middle of a with block, which the child then leaves."""
    give_time()
    lock = advisory_lock(name, using=using)
    pid = 0
    with lock:
        sys.stdout.flush()
        pid = os.fork()
    if pid == 0:
        os._exit(0 if advisory_lock(name + "-child", using=using).try_acquire() else 1)
    link.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    with lock:
        link.say("again")


@each_engine
def test_r22_a_with_block_is_left_by_both(using: str, name: str) -> None:
    with Child(fork_inside_with, using, name) as parent:
        assert parent.hear() == 0
        assert parent.hear() == "again"


def fork_in_the_middle(link: Any, using: str, name: str, times: int) -> None:
    """In a child of the test: three threads lock and release all the time while the process forks."""
    ended = threading.Event()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while not ended.is_set():
                with advisory_lock(f"{name}{number % 2}", using=using, timeout=20):
                    pass
        except BaseException as error:
            failed.append(error)

    with advisory_lock(name, using=using):  # imports: a fork in the middle of one stops the child, in Python itself
        pass
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        with advisory_lock(name + "-child", using=using, timeout=10):
            pass

    statuses = [forked(child) for _ in range(times)]
    ended.set()
    for thread in threads:
        thread.join(30)
    link.say([statuses, [repr(error) for error in failed]])


@pytest.mark.tier2
@each_engine
def test_r22_fork_while_other_threads_are_in_the_middle_of_a_statement(using: str, name: str) -> None:
    """No mutex that another thread had at the fork is waited for in the child; nobody's statement breaks."""
    began = time.monotonic()
    with Child(fork_in_the_middle, using, name, 15) as parent:
        statuses, failed = parent.hear(timeout=60)
    assert statuses == [0] * 15
    assert failed == []
    within(time.monotonic() - began, 30)


def fork_without_locks(link: Any, using: str, name: str) -> None:
    """In a child of the test, like a server that preloads: used before the fork, idle at the fork."""
    with advisory_lock(name, using=using) as lease:
        before = session_of(lease).server_id
    idle_from = time.monotonic()

    def child() -> None:
        with advisory_lock(name, using=using) as own:
            assert session_of(own).server_id != before
            own.ensure_held()

    statuses = [forked(child) for _ in range(3)]
    with advisory_lock(name, using=using) as lease:
        link.say([statuses, session_of(lease).server_id == before, time.monotonic() - idle_from])


@each_engine
def test_r22_a_server_that_locks_before_it_forks_its_workers(using: str, name: str) -> None:
    with Child(fork_without_locks, using, name) as parent:
        statuses, same_session, idle = parent.hear()
    assert statuses == [0, 0, 0]
    within(idle, 4.5)  # an idle session closes after 5 s
    assert same_session
