"""Processes that die, are stopped, or end with locks held; hosts that are suspended; servers that start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from django_distlock import LockLost, advisory_lock
from tests.conftest import eventually
from tests.engines.zookeeper.server import use
from tests.faults.pausing import take_over, wake
from tests.faults.server import SESSION_LOCKS
from tests.support import services
from tests.support.processes import Child

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def hold_and_start_a_program(link: Any, using: str, name: str) -> None:
    """In a child: start a program that inherits all that can be inherited, then hold for ever."""
    lease = advisory_lock(name, using=using).acquire()
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False, **silent)
    link.say(sleeper.pid)
    link.hear()
    lease.release()


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r22_a_program_that_the_holder_started_does_not_keep_the_lock(using: str, name: str) -> None:
    """An inherited socket would keep the session, and so the lock, for as long as the program runs."""
    with Child(hold_and_start_a_program, using, name) as child:
        sleeper = child.hear()
        try:
            child.kill()
            advisory_lock(name, using=using).acquire(timeout=20).release()
            os.kill(sleeper, 0)  # it does still run
        finally:
            os.kill(sleeper, signal.SIGKILL)


def refusal(lease: Any) -> str:
    """What ``ensure_held()`` says; empty if it passes."""
    try:
        lease.ensure_held()
    except LockLost as error:
        return str(error)
    return ""


def holder(link: Any, using: str, name: str) -> None:
    """Hold the lock, with a clock that stands still from before the stop until it has looked at its lease."""
    lock = advisory_lock(name, using=using, **({} if using == "zookeeper" else {"ttl": 0.6}))
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


@pytest.mark.parametrize("using", ["leasetable", "redis", "redlock", "zookeeper"])
def test_r18_a_lease_that_ended_while_the_host_was_suspended_is_lost_at_the_first_look(using: str, name: str) -> None:
    """SIGSTOP stops the process as a suspended host does; what the kernel does to the clock, the child does."""
    with Child(holder, using, name) as child:
        assert child.hear() == "ready"
        with take_over(child, advisory_lock(name, using=using), patience=8) as lease:
            child.say("look")
            wake(child)
            first = child.hear()
            assert "was lost" in first or "ZooKeeper does not answer" in first
            child.say("and later")
            assert "was lost" in child.hear()
            lease.ensure_held()


def try_it(link: Any, name: str) -> None:
    link.say(advisory_lock(name, using="zookeeper").try_acquire() is not None)


def test_r21_a_lock_outlives_a_restart_of_zookeeper_and_its_fence_rises(name: str, settings: Any) -> None:
    use(settings, session_timeout=15)
    with advisory_lock(name, using="zookeeper") as lease:
        services.restart("zookeeper")
        eventually(lambda: lease.held, "it is not held again")
        with Child(try_it, name) as rival:
            assert rival.hear() is False
    with advisory_lock(name, using="zookeeper", timeout=20) as following:
        assert following.fence > lease.fence


# programs that end with locks held: without a word, and the server has the lock back

kept: list[Any] = []


def forget(link: Any, using: str, name: str) -> None:
    kept.append(advisory_lock(name, using=using).acquire())
    link.say("held")


def forget_in_a_generator(link: Any, using: str, name: str) -> None:
    """Which is closed somewhen during the end of the interpreter."""

    def hold() -> Any:
        with advisory_lock(name, using=using):
            yield

    kept.append(hold())
    next(kept[-1])
    kept.append(kept)
    link.say("held")


def forget_in_a_thread(link: Any, using: str, name: str) -> None:
    """One daemon thread holds, another one waits behind it."""
    held = threading.Event()

    def hold() -> None:
        with advisory_lock(name, using=using, timeout=None):
            held.set()
            threading.Event().wait()

    for _ in range(2):
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
    link.say("held")


FORGETFUL = [forget, forget_in_a_generator, forget_in_a_thread]


@pytest.mark.parametrize(
    ("using", "function"),
    [*(("postgres", each) for each in FORGETFUL), *((using, forget) for using in ("mysql", "zookeeper", "leasetable"))],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_program_that_ends_with_a_lock_held(using: str, function: Any, name: str) -> None:
    with Child(function, using, name) as child:
        assert child.hear() == "held"
        child.finish()
        assert using == "zookeeper" or child._errors == []  # whose session ends first, and says so
    if using != "leasetable":
        advisory_lock(name, using=using).acquire(timeout=20).release()
