"""The order of what is done before and after a fork, and that one failure does not stop the rest."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import ROOT

PROGRAM = """
import os
from django_distlock.concurrency.fork import Order, at_fork

said = []

def say(*words):
    return lambda: said.append(" ".join(words))

def fail():
    raise ZeroDivisionError

def register(name, order, **more):
    whens = {when: say(when, name) for when in ("before", "parent", "child")}
    at_fork(order, **{**whens, **more})

register("holds", Order.HOLDS)
register("sessions", Order.SESSIONS)
register("broken", Order.SESSIONS, child=fail)
register("mutexes", Order.PRIMITIVES, before=None)
if os.fork():
    os.wait()
print(*said, sep=", ", flush=True)
"""


def test_the_order_around_a_fork() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    before = "before holds, before broken, before sessions"
    assert done.stdout.splitlines() == [
        f"{before}, child mutexes, child sessions, child holds",
        f"{before}, parent mutexes, parent sessions, parent broken, parent holds",
    ]
    assert "ZeroDivisionError" in done.stderr
