"""Processes that die: SIGKILL of a holder, of a waiter, and what a dying process leaves to the programs it started."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import pytest

from django_distlock import advisory_lock
from tests.conftest import eventually
from tests.engines.actors import hold, share_and_write
from tests.faults.server import SESSION_LOCKS, holders, waiters
from tests.support.processes import Child
from tests.support.timing import within

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases"), pytest.mark.tier2]
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)

ROUNDS = 5


def hold_when_told(link: Any, using: str, *names: str) -> None:
    """In a child that is ready long before: hold a name as soon as told, for ever."""
    link.say("ready")
    name = link.hear()
    lease = advisory_lock(name, using=using, timeout=30).acquire()
    link.say("held")
    link.hear()
    lease.release()


@each_engine
def test_i8_sigkill_of_the_holder_frees_within_100_ms(using: str, name: str) -> None:
    """The kernel closes the socket and the server ends the session: nobody waits for a timeout."""
    times = []
    with ExitStack() as stack:
        children = [stack.enter_context(Child(hold_when_told, using)) for _ in range(ROUNDS)]
        for child in children:
            assert child.hear() == "ready"
        for number, child in enumerate(children):
            one = f"{name}{number}"
            child.say(one)
            assert child.hear() == "held"
            assert advisory_lock(one, using=using).try_acquire() is None
            child.signal(signal.SIGKILL)
            killed = time.monotonic()
            with advisory_lock(one, using=using, timeout=5):
                times.append(time.monotonic() - killed)
            child.kill()
    within(statistics.median(times), 0.1, what=times)
    within(max(times), 1.0, what=times)


@each_engine
def test_r4_a_waiter_that_was_killed_is_passed_over(using: str, name: str) -> None:
    """R4: the lock goes to the one behind it, at once, and the dead one never gets it."""
    times = []
    for round_ in range(2):
        one = f"{name}{round_}"
        with ExitStack() as stack:
            holder = stack.enter_context(Child(hold, using, one))
            assert holder.hear() == "held"
            doomed = stack.enter_context(Child(share_and_write, using, one))
            assert doomed.hear() == "asking"
            eventually(lambda one=one: len(waiters(using, one)) == 1, "the first waiter does not wait")
            second = stack.enter_context(Child(share_and_write, using, one))
            assert second.hear() == "asking"
            eventually(lambda one=one: len(waiters(using, one)) == 2, "the second waiter does not wait")
            doomed.kill()
            released = time.monotonic()
            holder.say()
            times.append(second.hear() - released)
            assert len(holders(using, one)) == 1
            assert holder.hear() == "released"
            second.say()
        eventually(lambda one=one: not holders(using, one), "held by the dead")
    within(min(times), 0.1, what=times)
    within(max(times), 1.5, what=times)


@each_engine
def test_a_dead_waiter_leaves_the_queue_while_the_lock_is_held(using: str, name: str) -> None:
    """The server looks at the socket of a waiter once a second: a dead one does not fill the queue for hours."""
    with Child(hold, using, name) as holder:
        assert holder.hear() == "held"
        with Child(share_and_write, using, name) as doomed:
            assert doomed.hear() == "asking"
            eventually(lambda: waiters(using, name), "the waiter does not wait")
            doomed.kill()
        eventually(lambda: not waiters(using, name), "the dead one is still in the queue")
        holder.say()
        assert holder.hear() == "released"


@each_engine
def test_a_stopped_waiter_keeps_its_place_and_a_stopped_holder_its_lock(using: str, name: str) -> None:
    """SIGSTOP is not death: the session lives on, and nobody else gets in."""
    with Child(hold, using, name) as holder:
        assert holder.hear() == "held"
        holder.signal(signal.SIGSTOP)
        assert advisory_lock(name, using=using).try_acquire(timeout=1) is None
        holder.signal(signal.SIGCONT)
        holder.say()
        assert holder.hear() == "released"
    with advisory_lock(name, using=using):
        pass


def hold_and_start_a_program(link: Any, using: str, name: str) -> None:
    """In a child: start a program that inherits all that can be inherited, then hold for ever."""
    lease = advisory_lock(name, using=using).acquire()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    link.say(sleeper.pid)
    link.hear()
    lease.release()


@each_engine
def test_r22_a_program_that_the_holder_started_does_not_keep_the_lock(using: str, name: str) -> None:
    """An inherited socket would keep the session, and so the lock, for as long as the program runs."""
    sleeper = None
    try:
        with Child(hold_and_start_a_program, using, name) as child:
            sleeper = child.hear()
            child.kill()
            killed = time.monotonic()
            with advisory_lock(name, using=using, timeout=5):
                within(time.monotonic() - killed, 1.0)
            os.kill(sleeper, 0)  # it does still run
    finally:
        if sleeper is not None:
            os.kill(sleeper, signal.SIGKILL)
