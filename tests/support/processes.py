"""Other processes that take part in a test: a function of a test module, run in a fresh interpreter on the same test
databases, with lines of JSON both ways.

    with Child(hold, "postgres", "name") as child:      # def hold(link, using, name): ...
        assert child.hear() == "held"
        child.say("release")
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from django.db import connections

from tests.support.nursery import ROOT, Nursery, surroundings
from tests.support.services.process import wait_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Link

PATIENCE = 30.0  # seconds


def start(function: str, arguments: str, databases: str, env: dict[str, str] | None) -> Any:
    """A process of tests.support.child: forked from one that has loaded Django, if that has the same environment."""
    global _nursery
    if not env:
        _nursery = _nursery or Nursery()
        if _nursery.environment == surroundings():
            return _nursery.fork(function, arguments, databases)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.child", function, arguments, databases],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )


_nursery: Nursery | None = None


class Child:
    """A process that runs ``function(link, *args)``; ended at the end of the block whatever happened."""

    def __init__(self, function: Callable[..., Any], *args: Any, env: dict[str, str] | None = None) -> None:
        names = json.dumps({alias: str(connections[alias].settings_dict["NAME"]) for alias in connections})
        self.killed = False
        self.process = start(f"{function.__module__}:{function.__qualname__}", json.dumps(args), names, env)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, timeout: float = PATIENCE) -> Any:
        """The next thing that the child says; fails if it ends or is silent for ``timeout`` seconds."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"The child was silent for {timeout} s. {''.join(self._errors)}") from None
        if line is None:
            self.process.wait(PATIENCE)
            self._readers[1].join(PATIENCE)
            raise AssertionError(f"The child ended with {self.process.returncode}. {''.join(self._errors)}")
        return json.loads(line)

    def say(self, value: Any = None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.killed = self.killed or number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
            self.process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_stopped([self.process.pid])

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def finish(self) -> None:
        """Wait for the end of the function; fails if it failed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self._readers[1].join(PATIENCE)
        assert self.killed or self.process.returncode == 0, "".join(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and not self.killed:
                self.finish()
        finally:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
                self.process.wait(PATIENCE)
            for reader in self._readers:
                reader.join(PATIENCE)
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None and not stream.closed:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


class Servant(Child):
    """A process that does what it is told, one thing after the other: methods of ``deeds(link)``, whose values it says.

    For tests that need another process many times: starting one takes longer than what most of them do.
    """

    def __init__(self, deeds: Callable[..., Any]) -> None:
        super().__init__(serve, f"{deeds.__module__}:{deeds.__qualname__}")

    def start(self, deed: str, *args: Any) -> None:
        """Tell, without waiting for the value."""
        self.say([deed, *args])

    def do(self, deed: str, *args: Any) -> Any:
        self.start(deed, *args)
        return self.hear()

    def finish(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself, and why is said below
            self.say(None)
        super().finish()


def serve(link: Link, path: str) -> None:
    module, _, name = path.partition(":")
    deeds = getattr(importlib.import_module(module), name)(link)
    while (command := link.hear()) is not None:
        deed, *args = command
        link.say(getattr(deeds, deed)(*args))
