"""R22: children that end as programs do, by sys.exit, leave the locks of their parent alone, also those on a session
that was waited on. What else a child may do: tests/contract/test_fork.py."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import pytest

from django_distlock import advisory_lock
from tests.engines.actors import held_elsewhere
from tests.faults.server import SESSION_LOCKS, holders
from tests.support.processes import Child
from tests.support.unhurried import give_time

pytestmark = pytest.mark.usefixtures("databases")


def forked(body: Any) -> int:
    """Run ``body`` in a forked child, with atexit handlers, finalizers of the drivers and all; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_while_holding(link: Any, using: str, name: str) -> None:
    """In a child of the test: a lock taken without waiting and one that was waited for; then forks."""
    give_time()
    lock = advisory_lock(name, using=using)
    lock.acquire().release()
    # like a server that preloads: used before the fork, idle at the fork
    statuses = [forked(lambda: lock.acquire().release())]
    leases = [lock.acquire()]
    link.say("waiting")
    leases.append(advisory_lock(name + "-waited", using=using, timeout=20).acquire())

    def child() -> None:
        for lease in leases:
            lease.release()
        assert lock.try_acquire() is None
        with advisory_lock(name + "-own", using=using) as own:
            own.ensure_held()

    link.say([*statuses, *(forked(work) for work in (child, lambda: None))])
    link.hear()
    for lease in leases:
        lease.ensure_held()
        lease.release()
    link.say("released")


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r22_children_leave_the_locks_of_their_parent_alone(using: str, name: str) -> None:
    with held_elsewhere(using, name + "-waited") as let_go, Child(fork_while_holding, using, name) as parent:
        assert parent.hear() == "waiting"
        let_go()
        assert parent.hear() == [0] * 3
        assert [len(holders(using, each)) for each in (name, name + "-waited")] == [1, 1]
        parent.say()
        assert parent.hear() == "released"
