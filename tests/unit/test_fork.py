"""The order of what is done before and after a fork, and that one failure does not stop the rest."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import ROOT

PROGRAM = """
import os, sys
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
register("more sessions", Order.SESSIONS)
register("mutexes", Order.PRIMITIVES, before=None)
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(writer, "\\n".join(said).encode())
    os._exit(0)
os.waitpid(pid, 0)
os.close(writer)
print(os.read(reader, 10000).decode())
print("--")
print("\\n".join(said))
"""


def test_the_order_around_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    child, parent = (part.split("\n") for part in done.stdout.strip().split("\n--\n"))
    before = ["before holds", "before more sessions", "before broken", "before sessions"]
    assert child == [*before, "child mutexes", "child sessions", "child more sessions", "child holds"]
    after = ["parent mutexes", "parent sessions", "parent broken", "parent more sessions", "parent holds"]
    assert parent == [*before, *after]
    assert "ZeroDivisionError" in done.stderr
