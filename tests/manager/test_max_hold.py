"""R20: ``max_hold`` counts from the grant, and nothing passes it."""

from __future__ import annotations

import threading

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from tests.conftest import eventually

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.alone]


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["memory", "redis"])
def test_r20_the_wait_for_the_lock_does_not_count(using: str, name: str) -> None:
    ttl, max_hold = 1.5, 4.0
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with advisory_lock(name, using=using, timeout=10):
            held.set()
            ended.wait(max_hold)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    lease = advisory_lock(name, using=using, ttl=ttl, max_hold=max_hold, timeout=None).acquire()
    granted = monotonic()
    holder.join()
    eventually(lambda: lease.lost, "max_hold does not end it")
    assert max_hold - ttl < monotonic() - granted
    with pytest.raises(LockLost):
        lease.release()


@pytest.mark.parametrize("using", ["memory", "redis"])
def test_r20_extend_does_not_pass_it(using: str, name: str) -> None:
    lease = advisory_lock(name, using=using, max_hold=1.0).acquire()
    granted = monotonic()
    lease.extend(60)
    assert lease.valid_until is not None
    assert lease.valid_until <= granted + 1
    eventually(lambda: lease.lost, "it is held for longer than max_hold")
    with pytest.raises(LockLost):
        lease.extend(60)
    with advisory_lock(name, using=using, timeout=5):
        pass
