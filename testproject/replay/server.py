"""A real multi-process server for the demo: gunicorn on the loopback interface."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Self

from . import TOP, ReplayError
from .crowd import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

STOP_SECONDS = 10


class Server:
    """gunicorn with `workers` processes of `threads` threads each, ready to serve inside the with-block.

    It listens on the first of `ports` that is free, 0 being any. The application gets this process's environment and
    so the same database. The server ends with the with-block, and when this process dies. What it logs is kept for
    `log_tail`, or goes to this process's own output with `show_log`.
    """

    def __init__(
        self, *, workers: int = 4, threads: int = 40, ports: Iterable[int] = (0,), show_log: bool = False
    ) -> None:
        if importlib.util.find_spec("gunicorn") is None:
            raise ReplayError("gunicorn is not installed: `pip install --group demo-sqlite`, or use `make demo`.")
        self.workers, self.threads, self.ports, self.show_log = workers, threads, ports, show_log
        self.process: subprocess.Popen[bytes]
        self.log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self.log = tempfile.TemporaryFile()
        with listen(self.ports) as listener:
            self.port = listener.getsockname()[1]
            self.process = self._start(listener.fileno())
        # The application is loaded once, before the first worker: when one answers, no other one has to load it.
        answer = Request(self.port, "/").send()
        if not answer.status:
            tail = self.log_tail()
            self.__exit__()
            raise ReplayError(f"The server did not start ({answer.body}). Its log:\n{tail}")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The workers notice that their parent is gone and end by themselves.
            self.process.kill()
            self.process.wait()
        self.log.close()

    def log_tail(self, lines: int = 60) -> str:
        """The last lines that the server wrote."""
        self.log.seek(0)
        return "\n".join(self.log.read().decode(errors="replace").splitlines()[-lines:])

    def _start(self, listener: int) -> subprocess.Popen[bytes]:
        # A process takes no more connections than it has threads: what it cannot serve at once, another one accepts.
        sizes = {"workers": self.workers, "threads": self.threads, "worker-connections": self.threads}
        command = [sys.executable, "-m", "gunicorn", "--config", "python:testproject.replay.gunicorn_conf"]
        command += [*(f"--{name}={size}" for name, size in sizes.items()), f"--bind=fd://{listener}"]
        return subprocess.Popen(
            [*command, "testproject.wsgi:application"],
            cwd=TOP,
            pass_fds=(listener,),
            stdin=subprocess.DEVNULL,
            stdout=None if self.show_log else self.log,
            stderr=None if self.show_log else subprocess.STDOUT,
        )


def listen(ports: Iterable[int]) -> socket.socket:
    """A listening socket, opened here and handed over, so that no other program can take the port in between."""
    for port in ports:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port), backlog=256)
    raise ReplayError(f"Port {port} is in use; choose another one.")
