"""R19: which clock it is. That leases are on it, tests/faults/test_suspended.py shows."""

from __future__ import annotations

import sys
import time

from django_distlock.concurrency.clock import now as monotonic


def test_r19_it_runs_on_while_the_host_is_suspended() -> None:
    """The kernel says so of these two; only where there is neither may it be another one."""
    runs_on = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}[sys.platform]
    assert monotonic.func is time.clock_gettime
    assert monotonic.args == (getattr(time, runs_on),)
    before = time.clock_gettime(getattr(time, runs_on))
    assert before <= monotonic() <= time.clock_gettime(getattr(time, runs_on))
