"""A real multi-process server for the demo: gunicorn on the loopback interface."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

from . import ReplayError

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60
STOP_SECONDS = 10


class Server:
    """gunicorn with `workers` processes of `threads` threads each, ready to serve inside the with-block.

    The application gets this process's environment and so the same database. `port` 0 takes a free one; with
    `or_any_port` a taken port is replaced by a free one, else it is a ReplayError. The server ends with the
    with-block, and also when this process dies without leaving it. What it logs is kept for `log_tail`, or goes to
    this process's own output with `show_log`.
    """

    def __init__(
        self, *, workers: int = 4, threads: int = 40, port: int = 0, or_any_port: bool = False, show_log: bool = False
    ) -> None:
        if importlib.util.find_spec("gunicorn") is None:
            raise ReplayError("gunicorn is not installed: `pip install --group demo-sqlite`, or use `make demo`.")
        self.workers, self.threads, self.port, self.or_any_port = workers, threads, port, or_any_port
        self.show_log = show_log
        self.process: subprocess.Popen[bytes]
        self.log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self.log = tempfile.TemporaryFile()
        # The server's end of the lifeline is readable only once this process is gone: see gunicorn_conf.py.
        lifeline, self._lifeline = os.pipe()
        with self._listener() as listener:
            self.port = listener.getsockname()[1]
            self.process = self._start(listener.fileno(), lifeline)
        os.close(lifeline)
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()

    def log_tail(self, lines: int = 60) -> str:
        """The last lines that the server wrote."""
        self.log.seek(0)
        return "\n".join(self.log.read().decode(errors="replace").splitlines()[-lines:])

    def wait(self) -> None:
        """Return when the server has ended."""
        self.process.wait()

    def _listener(self) -> socket.socket:
        """A listening socket, opened here and handed over, so that no other program can take the port in between."""
        listener = socket.socket()
        # A port whose last server has just stopped may be taken again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            try:
                listener.bind(("127.0.0.1", self.port))
            except OSError as error:
                if not self.or_any_port:
                    raise ReplayError(f"Port {self.port}: {error.strerror}; choose another one.") from error
                listener.bind(("127.0.0.1", 0))
            listener.listen(256)
        except BaseException:
            listener.close()
            raise
        return listener

    def _start(self, listener: int, lifeline: int) -> subprocess.Popen[bytes]:
        given = {
            "REPLAY_WORKERS": str(self.workers),
            "REPLAY_THREADS": str(self.threads),
            "REPLAY_LIFELINE_FD": str(lifeline),
        }
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "--config", "python:testproject.replay.gunicorn_conf"),
                *("--bind", f"fd://{listener}", "testproject.wsgi:application"),
            ],
            cwd=ROOT,
            env={**os.environ, **given},
            pass_fds=(listener, lifeline),
            stdin=subprocess.DEVNULL,
            stdout=None if self.show_log else self.log,
            stderr=None if self.show_log else subprocess.STDOUT,
        )

    def _wait_until_ready(self) -> None:
        """The application is loaded once, before the first worker: when one answers, no other one has to load it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request("HEAD", "/")
            connection.getresponse()
        except OSError as error:
            raise ReplayError(f"The server did not start ({error}). Its log:\n{self.log_tail()}") from error
        finally:
            connection.close()

    def _stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # The workers notice that their parent is gone and end by themselves.
                self.process.kill()
                self.process.wait()
        os.close(self._lifeline)
        self.log.close()
