"""How the replay and the demo run gunicorn; the sizes come from server.py through the environment."""

from __future__ import annotations

import gc
import os
import signal
import threading

workers = int(os.environ["REPLAY_WORKERS"])
worker_class = "gthread"
threads = int(os.environ["REPLAY_THREADS"])
# A process takes no more connections than it has threads: what it cannot serve at once, another one accepts.
worker_connections = threads
# The application is loaded once and the processes are forked from it, as many sites do: its locks must survive that.
preload_app = True
keepalive = 0
timeout = 120
graceful_timeout = 5
control_socket_disable = True
loglevel = "warning"


def on_starting(server) -> None:
    """Before the first fork, with the application loaded."""
    gc.freeze()  # what the processes share is no garbage of theirs: to look at it would be to copy it
    stop_with_parent()


def stop_with_parent() -> None:
    """Stop when the process that started this server is gone, however it went: nobody is left who would."""

    def watch() -> None:
        os.read(int(os.environ["REPLAY_LIFELINE_FD"]), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
