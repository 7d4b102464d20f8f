"""R22: a child never releases or closes its parent's lock, and its copy of a Lease is not held.

All forks happen in a process of their own, never in that of pytest.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, holders, session_of
from tests.support.processes import Child
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


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
    with advisory_lock(name + "-before", using=using) as lease:
        before = session_of(lease).server_id
    # like a server that preloads: used before the fork, idle at the fork
    statuses = [forked(lambda: advisory_lock(name, using=using).acquire().release())]
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
        assert advisory_lock(name, using=using).try_acquire() is None
        with advisory_lock(name + "-own", using=using) as own:
            own.ensure_held()
            assert session_of(own).server_id != before

    def leave_a_block() -> None:
        pid = 0
        with advisory_lock(name + "-block", using=using):
            pid = os.fork()
        if pid == 0:
            os._exit(0 if advisory_lock(name + "-child", using=using).try_acquire() else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    statuses += [forked(child) for _ in range(2)]
    statuses += [forked(lambda: None), forked(lambda: os._exit(0))]
    leave_a_block()
    link.say(statuses)
    link.hear()
    first.ensure_held()
    second.ensure_held()
    assert not ears
    first.release()
    second.release()
    link.say("released")


@each_engine
def test_r22_children_leave_the_locks_of_their_parent_alone(using: str, name: str) -> None:
    """On the shared session and on one that was waited on; children that look, that lock, that only end, and that leave
    a block of their parent's."""
    with Child(hold, using, name + "-waited") as other:
        assert other.hear() == "held"
        with Child(fork_while_holding, using, name) as parent:
            assert parent.hear() == "waiting"
            other.say()
            assert other.hear() == "released"
            assert parent.hear() == [0] * 6
            assert len(holders(using, name)) == 1
            assert len(holders(using, name + "-waited")) == 1
            assert advisory_lock(name, using=using).try_acquire() is None
            parent.say()
            assert parent.hear() == "released"
    eventually(lambda: not holders(using, name), "still held")
