"""A real multi-process server for the demo: gunicorn on the loopback interface."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from . import TOP, ReplayError
from .crowd import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

STOP_SECONDS = 10


class Server:
    """gunicorn with `workers` processes of `threads` threads each, ready to serve inside the with-block.

    It listens on the first of `ports` that is free, 0 being any. The application gets this process's environment and
    so the same database. The server ends with the with-block, and when this process dies.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, *, workers: int = 4, threads: int = 40, ports: Iterable[int] = (0,)) -> None:
        if importlib.util.find_spec("gunicorn") is None:
            raise ReplayError("gunicorn is not installed: `pip install --group demo-sqlite`, or use `make demo`.")
        self.workers, self.threads, self.ports = workers, threads, ports

    def __enter__(self) -> Self:
        # A process takes no more connections than it has threads: what it cannot serve at once, another one accepts.
        sizes = {"workers": self.workers, "threads": self.threads, "worker-connections": self.threads}
        command = [sys.executable, "-m", "gunicorn", "--config", "python:testproject.replay.gunicorn_conf"]
        command += [f"--{name}={size}" for name, size in sizes.items()]
        with listen(self.ports) as listener:
            self.port, number = listener.getsockname()[1], listener.fileno()
            command += [f"--bind=fd://{number}", "testproject.wsgi:application"]
            self.process = subprocess.Popen(command, cwd=TOP, pass_fds=(number,), stdin=subprocess.DEVNULL)
        # The application is loaded once, before the first worker: when one answers, no other one has to load it.
        answer = Request(self.port, "/").send()
        if not answer.status:
            self.__exit__()
            raise ReplayError(f"The server did not start ({answer.body}); its log above says why.")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The workers notice that their parent is gone and end by themselves.
            self.process.kill()
            self.process.wait()


def listen(ports: Iterable[int]) -> socket.socket:
    """A listening socket, opened here and handed over, so that no other program can take the port in between."""
    for port in ports:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port), backlog=256)
    raise ReplayError(f"Port {port} is in use; choose another one.")
