"""An interrupt comes out of kazoo."""

from __future__ import annotations

import contextlib

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.zookeeper import client, handler
from tests.conftest import connect
from tests.support.interrupts import Interrupter


@pytest.mark.usefixtures("databases")
def test_r7_ctrl_c_is_not_lost_within_kazoo(name: str) -> None:
    """kazoo's own takes it for a closed connection: the caller went on to wait, and had the lock in the end."""
    connect("zookeeper")
    for at in range(1000):
        lock = advisory_lock(f"{name}{at}", using="zookeeper")
        interrupter, lost = Interrupter(at, client, handler), False
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(lambda lock=lock: lock.acquire(timeout=20).release())
            lost = True
        if interrupter.place is None:  # there are no more
            assert at
            return
        assert not lost, interrupter.place
