"""R17: each lease speaks for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_distlock import LockLost, advisory_lock
from tests.conftest import eventually

if TYPE_CHECKING:
    from django_distlock import Lease

pytestmark = pytest.mark.usefixtures("databases")


def test_r17_a_lease_that_was_released_is_not_lost_with_another_one(name: str) -> None:
    lock = advisory_lock(name, using="memory", ttl=2, max_hold=2)
    first, second = lock.acquire(), lock.acquire()
    told: list[Lease] = []
    first.on_lost(told.append)
    first.release()
    eventually(lambda: second.lost, "max_hold does not end it")
    assert not first.lost
    assert not told
    with pytest.raises(LockLost):
        second.release()
    assert second.lost, "its release met the loss"
