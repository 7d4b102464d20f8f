"""Children that need no half second to load Django: forked from a process that has done so and nothing else.

That process has one thread, no connection and no lock. Its children end like any program, with the interpreter.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from typing import IO, Any

from tests.support.paths import ROOT

LONGEST_ORDER = 2**16


class Forked:
    """What subprocess.Popen is for a child of our own. The nursery tells of its end."""

    def __init__(self, pid: int, end: int, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end
        # Threads of a test may ask at once: only one reads, and the descriptor stays open for the others.
        self._guard = threading.Lock()
        weakref.finalize(self, os.close, end)
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            with self._guard:
                if self.returncode is None:
                    told = os.read(self._end, 16)
                    self.returncode = int(told or -signal.SIGKILL)  # the nursery itself was killed
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process, seen from the tests."""

    def __init__(self) -> None:
        self.environment = surroundings()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self.close)

    def fork(self, function: str, arguments: str, databases: str) -> Forked:
        their_in, stdin = os.pipe()
        stdout, their_out = os.pipe()
        stderr, their_err = os.pipe()
        end, their_end = os.pipe()
        theirs = [their_in, their_out, their_err, their_end]
        socket.send_fds(self._orders, [json.dumps([function, arguments, databases]).encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        pid = os.read(end, 16)
        assert pid, "the nursery has ended"
        return Forked(int(pid), end, stdin, stdout, stderr)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def surroundings() -> dict[str, str]:
    """What a child would see of the environment; a test that changes it needs a process of its own."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def serve(orders: socket.socket) -> list[Any] | None:
    """Fork for each order until there are none. In the child: the order."""
    ends: dict[int, tuple[int, int]] = {}  # by the descriptor of a child: its number, and the pipe that is told its end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C is for the tests
    while True:
        for ready in select.select([orders, *ends], [], [])[0]:
            if ready is not orders:
                reap(ready, *ends.pop(ready))
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, LONGEST_ORDER, 4)
            if not order:
                return None
            pid = os.fork()
            if not pid:
                become_child(descriptors, [*ends, *(end for _, end in ends.values())])
                orders.close()
                return list(json.loads(order))
            end = descriptors.pop()
            ends[os.pidfd_open(pid)] = pid, end
            os.write(end, str(pid).encode())
            for descriptor in descriptors:
                os.close(descriptor)


def reap(child: int, pid: int, end: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # nobody asks any more
        os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(child)
    os.close(end)


def become_child(descriptors: list[int], others: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    *streams, end = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (*streams, end, *others):
        os.close(descriptor)


def main() -> None:
    from tests.support import child

    child.load()
    import pytest  # noqa: F401  # what the children run stands in modules of tests

    # Else each child would look at all of this for garbage when it ends, and so copy it: five times what a child costs.
    gc.collect()
    gc.freeze()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        child.run(*order)


if __name__ == "__main__":
    main()
