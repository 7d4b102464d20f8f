"""Processes that a replay starts: each does the jobs that it is handed, one after the other."""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from . import ReplayError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SECONDS = 180


def work(pipe: Connection, function: str, shared: tuple[Any, ...], loads_django: bool) -> None:
    """Do one job after the other until it is None, or the replay is gone."""
    if loads_django:
        import django

        django.setup()
    do = pkgutil.resolve_name(function)
    pipe.send((None, "ready"))
    with suppress(EOFError):
        while (job := pipe.recv()) is not None:
            try:
                pipe.send((None, do(pipe, *shared, *job)))
            except Exception as error:
                pipe.send((f"{type(error).__name__}: {error}", None))


class Team:
    """`size` processes for jobs of `function`, "module:name", which gets its pipe, what is `shared`, and the job.

    Spawned, not forked: a child must not inherit this process's database connections. Those that load Django are on
    the database that the environment names. They end with the block, whatever happened.
    """

    def __init__(self, function: str, size: int, *shared: Any, loads_django: bool = True) -> None:
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self._size, self._arguments = size, (function, shared, loads_django)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(self._size):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, *self._arguments), daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
                self.pipes.append(ours)
            for number in range(self._size):
                self.receive(number)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        if kind is None:
            for process, pipe in zip(self.processes, self.pipes, strict=True):
                if process.is_alive():
                    pipe.send(None)
                    process.join(SECONDS)
        self._end()

    def _end(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def send(self, number: int, *job: Any) -> None:
        self.pipes[number].send(job)

    def receive(self, number: int) -> Any:
        """What came of its job."""
        try:
            if not self.pipes[number].poll(SECONDS):
                raise ReplayError(f"A process did not finish within {SECONDS} s.")
            error, answer = self.pipes[number].recv()
        except (EOFError, ConnectionResetError):
            raise ReplayError("A process died.") from None
        if error:
            raise ReplayError(f"A process failed: {error}")
        return answer

    def wait_until_stopped(self, number: int) -> None:
        """By the SIGSTOP that it sends to itself."""
        deadline = time.monotonic() + SECONDS
        while os.waitid(os.P_PID, self.processes[number].pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
            if not self.processes[number].is_alive() or time.monotonic() > deadline:
                raise ReplayError("The process that was to fall asleep did not.")
            time.sleep(0.005)
