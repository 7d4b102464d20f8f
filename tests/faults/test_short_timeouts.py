"""R5, R6: silence is not busy. However short its timeout is, an acquire is answered with what is true."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from tests.conftest import connect
from tests.matrix import MATRIX
from tests.support.processes import Child

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2, pytest.mark.alone]

ALIASES = [entry.using for entry in MATRIX if entry.processes]
each_alias = pytest.mark.parametrize("using", ALIASES)
PROCESSES, SECONDS = 8, 3.0


def first_lock(link: Any, using: str, name: str) -> None:
    lease = advisory_lock(name, using=using).try_acquire(timeout=0.05)
    link.say(lease is not None)
    if lease is not None:
        lease.release()


@each_alias
def test_r5_the_first_lock_of_a_process_is_given_however_short_its_timeout(using: str, name: str) -> None:
    """It has to connect, to find out what server that is, and to read the site key."""
    with Child(first_lock, using, name) as child:
        assert child.hear() is True


def crowd(link: Any, using: str, name: str, seconds: float) -> None:
    """Say (grants, answers "busy", answers "unavailable")."""
    lock = advisory_lock(name, using=using)
    link.say("ready")
    link.hear()
    granted = busy = unavailable = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            lease = lock.try_acquire(timeout=0.001)
            granted, busy = granted + (lease is not None), busy + (lease is None)
            if lease is not None:
                lease.release()
        except BackendUnavailable:
            unavailable += 1
    link.say([granted, busy, unavailable])


@each_alias
def test_r6_a_loaded_host_is_not_an_unavailable_server(using: str, name: str) -> None:
    """Four times as many processes as processors, and all of them run."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(crowd, using, name, SECONDS)) for _ in range(PROCESSES)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        told = [child.hear(timeout=SECONDS + 30) for child in children]
    granted, busy, unavailable = (sum(column) for column in zip(*told, strict=True))
    assert granted > 0
    assert not unavailable, f"{unavailable} times unavailable, {granted} times granted, {busy} times busy"


@pytest.mark.parametrize("timeout", [0, 0.05])
@pytest.mark.parametrize("using", [using for using in ALIASES if using not in ("leasetable", "redlock")])
def test_r5_a_server_that_answers_within_a_second_has_answered(
    using: str, name: str, timeout: float, proxied: Any
) -> None:
    proxy = proxied(using)
    connect(using)
    proxy.blackhole()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(advisory_lock(name, using=using).try_acquire, timeout)
        threading.Event().wait(0.7)
        proxy.heal()
        lease = asking.result(timeout=30)
    assert lease is not None
    lease.release()
