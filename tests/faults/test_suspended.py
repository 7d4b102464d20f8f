"""A host that is suspended: the kernel's CLOCK_MONOTONIC stands still meanwhile, leases go on (R18, R19)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.module_loading import import_string

from django_distlock import LockLost, advisory_lock
from tests.conftest import eventually
from tests.faults.pausing import take_over, wake
from tests.matrix import MATRIX, Entry
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock import Lease

pytestmark = pytest.mark.usefixtures("databases")

TTL = 0.6


def ends_by_itself(entry: Entry) -> bool:
    """Does a lock of that engine end while its holder is stopped?"""
    return entry.processes and (import_string(entry.backend).supports_ttl or entry.using == "zookeeper")


LEASES = pytest.mark.parametrize(
    "entry", [entry for entry in MATRIX if ends_by_itself(entry)], ids=lambda entry: entry.using, indirect=True
)


def refusal(lease: Lease) -> str:
    """What ``ensure_held()`` says; empty if it passes."""
    try:
        lease.ensure_held()
    except LockLost as error:
        return str(error)
    return ""


def holder(link: Any, using: str, name: str) -> None:
    """Hold the lock, with a clock that stands still from before the stop until it has looked at its lease."""
    lock = advisory_lock(name, using=using, **({} if using == "zookeeper" else {"ttl": TTL}))
    lease = lock.acquire()
    real, stood_still = time.monotonic, time.monotonic()
    time.monotonic = lambda: stood_still  # type: ignore[assignment]
    link.say("ready")
    link.hear()  # it is stopped here
    said = refusal(lease)
    time.monotonic = real
    link.say(said)
    link.hear()
    eventually(lambda: lease.lost, "the keepalive thread has revived it")
    with suppress(LockLost):
        lease.release()
    link.say(refusal(lease))


@LEASES
def test_r18_a_lease_that_ended_while_the_host_was_suspended_is_lost_at_the_first_look(entry: Entry, name: str) -> None:
    """SIGSTOP stops the process as a suspended host does; what the kernel does to the clock, the child does."""
    with Child(holder, entry.using, name) as child:
        assert child.hear() == "ready"
        lease = take_over(child, advisory_lock(name, using=entry.using), patience=8)
        child.say("look")
        wake(child)
        first = child.hear()
        assert "was lost" in first or "ZooKeeper does not answer" in first
        child.say("and later")
        assert "was lost" in child.hear()
        lease.ensure_held()
        lease.release()
