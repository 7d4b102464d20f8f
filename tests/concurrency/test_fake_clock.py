"""Leases and waits on a clock that the test moves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from django_distlock import LockLost, LockTimeout, advisory_lock
from django_distlock.manager.lock_table import lock_table
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from tests.support.clock import FakeClock


def test_r20_a_lease_is_renewed_at_a_third_of_its_ttl(fake_clock: FakeClock, name: str) -> None:
    lease = advisory_lock(name, using="memory", ttl=30).acquire()
    end = lease.valid_until
    fake_clock.advance(9.5)
    assert lease.valid_until == end
    fake_clock.advance(0.5)
    assert lease.valid_until == pytest.approx(end + 10)
    fake_clock.advance(31)  # the process has slept
    with pytest.raises(LockLost):
        lease.release()


def test_r20_renewal_ends_with_max_hold(fake_clock: FakeClock, name: str) -> None:
    lease = advisory_lock(name, using="memory", ttl=30, max_hold=40).acquire()
    for _ in range(3):
        fake_clock.advance(12)
    assert not lease.lost
    fake_clock.advance(5)
    with pytest.raises(LockLost):
        lease.release()


def test_r5_a_waiter_times_out_when_its_time_is_over(fake_clock: FakeClock, name: str) -> None:
    caught: list[type[Exception]] = []

    def wait() -> None:
        try:
            advisory_lock(name, using="memory").acquire(timeout=5)
        except LockTimeout as error:
            caught.append(type(error))

    with advisory_lock(name, using="memory"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: any(hold.parker is not None for hold in lock_table.everything()), "nobody waits")
        fake_clock.advance(4.9)
        assert not caught
        fake_clock.advance(0.2)
        waiter.join(PATIENCE)
        assert caught == [LockTimeout]
