"""How the replay and the demo run gunicorn; the sizes come from server.py."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

worker_class = "gthread"
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
    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()


def stop_with_parent(parent: int) -> None:
    """Stop when the process that started this server is gone, whatever ended it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
