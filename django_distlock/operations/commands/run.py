"""``manage.py distlock run NAME -- command``: any program under a lock, like flock(1) but across machines."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from django_distlock import DistlockError, LockNotAcquired, advisory_lock
from django_distlock.concurrency import clock
from django_distlock.manager.name_log import name_log

from .base import EX_TEMPFAIL, EX_UNAVAILABLE, Subcommand, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser

    from django_distlock import Lease

# A shell's exit status of a command that cannot be executed, that does not exist, or that a signal ended.
NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 126, 127, 128
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# The signals that a terminal sends to all its programs.
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
# Seconds between two checks of the lease, which cost no round trip.
CHECK_EVERY = 0.1
# The part of a lease's time that is reserved for ending the command.
MARGIN = 0.25


class Run(Subcommand):
    help = "Run a program while holding a lock."
    description = (
        "Exit status: that of the program; 128 + n if signal n ended it; 75 if the lock is busy; 69 if the lock's "
        "server does not answer, or if the lock was lost and the program ended without an error; 126 and 127 as in a "
        "shell. Signals are passed on to the program. If the lock is lost or cannot be renewed, the program gets TERM, "
        "and KILL after the grace time or at the end of the lease."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.usage = "%(prog)s [options] name -- command [argument ...]"
        parser.add_argument("name", help="the name of the lock")
        parser.add_argument("--using", default="default", metavar="ALIAS", help="the alias in DISTLOCK (default)")
        parser.add_argument(
            "--timeout",
            type=number(none=True),
            default=0.0,
            metavar="S",
            help='seconds to wait for the lock, or "none": for ever (0)',
        )
        parser.add_argument(
            "--ttl",
            type=number(positive=True),
            metavar="S",
            help="seconds for which the lock outlives this process, on backends with a TTL",
        )
        parser.add_argument("--shared", action="store_true", help="share the lock with other shared holders")
        parser.add_argument(
            "--grace", type=number(), default=10.0, metavar="S", help="seconds between TERM and KILL after a loss (10)"
        )
        # all that follows, also a "--" among it
        parser.add_argument("command", nargs=argparse.PARSER, help="the program and its arguments")

    def run(self, **options: Any) -> int:
        command = options["command"]
        if command[0] == "--":
            command = command[1:]
        if not command:
            raise ValueError("Say which program to run: NAME -- command [argument ...].")
        ttl = {} if options["ttl"] is None else {"ttl": options["ttl"]}
        lock = advisory_lock(
            options["name"], using=options["using"], timeout=options["timeout"], shared=options["shared"], **ttl
        )
        try:
            lease = lock.acquire()
        except LockNotAcquired as error:
            self.stderr.write(str(error))
            return EX_TEMPFAIL
        name_log.write_now(lease._hold)  # it will be held for long: lists show its name at once
        status = 0
        try:
            with lease, received_signals() as received:
                status = self._run(command, received, lease, options["grace"])
        except DistlockError as error:
            self.stderr.write(str(error))
            return status or EX_UNAVAILABLE
        return status

    def _run(self, command: list[str], received: list[int], lease: Lease, grace: float) -> int:
        try:
            program = Program(command, received, self.stderr.write)
        except FileNotFoundError:
            self.stderr.write(f"{command[0]}: not found")
            return NOT_FOUND
        except OSError as error:
            self.stderr.write(f"{command[0]}: {error.strerror}")
            return NOT_EXECUTABLE
        margin = 0.0 if lease.valid_until is None else MARGIN * (lease.valid_until - clock.now())
        try:
            while (status := program.wait(CHECK_EVERY)) is None:
                if not lease.held_for(margin):
                    return self._end(program, lease, grace) or EX_UNAVAILABLE
        except BaseException:
            program.end(grace)
            raise
        return status

    def _end(self, program: Program, lease: Lease, grace: float) -> int:
        """End the program before another process can hold the lock: with KILL at the end of the lease, or earlier."""
        why = "was lost"
        if lease.held and lease.valid_until is not None:
            why = "could not be renewed"
            grace = min(grace, max(0.0, lease.valid_until - clock.now()))
        self.stderr.write(f"The lock {lease.name!r} {why}: ending the command.")
        return program.end(grace)


@contextlib.contextmanager
def received_signals() -> Iterator[list[int]]:
    """The signals that this process gets meanwhile. Only a main thread can install handlers."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in FORWARDED}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Program:
    """A child process and all its descendants: they form a process group, so that they can be ended together.

    In a terminal only the child itself: a process group in the background could not read from the terminal.
    ``received`` are signals that :meth:`wait` passes on.
    """

    def __init__(self, command: list[str], received: list[int], warn: Callable[[str], object]) -> None:
        self._received, self._warn = received, warn
        self._grouped = not os.isatty(0)
        self._process = subprocess.Popen(command, process_group=0 if self._grouped else None)  # noqa: S603

    def wait(self, seconds: float) -> int | None:
        """The exit status, as a shell gives it; None if the program still runs after ``seconds``."""
        while self._received:
            number = self._received.pop(0)
            if self._grouped or number not in FROM_TERMINAL:  # the terminal sends those to the program too
                self._send(number)
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else SIGNALLED - status

    def end(self, grace: float) -> int:
        """Send TERM, and KILL after ``grace`` seconds; return the exit status."""
        self._send(signal.SIGTERM)
        until = clock.now() + grace
        while self._runs() and (left := until - clock.now()) > 0:
            time.sleep(min(left, CHECK_EVERY / 4))
        if self._runs() and self._send(signal.SIGKILL) is False:
            self._warn("Processes that run as another user could not be ended.")
        while (status := self.wait(CHECK_EVERY)) is None:
            pass
        return status

    def _runs(self) -> bool:
        """Does any of the processes run? One of another user does, too."""
        return self._process.poll() is None or (self._grouped and self._send(0) is not None)

    def _send(self, number: int) -> bool | None:
        """Send a signal to all processes that are left. None: none is left; False: they all run as other users, and
        have not got it."""
        try:
            if self._grouped:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
        except ProcessLookupError:
            return None
        except PermissionError:
            return False
        return True
