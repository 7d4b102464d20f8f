"""What is done to the socket of a lock session behind the back of its driver."""

from __future__ import annotations

import contextlib
import os
import select
import socket


def readable(fd: int, timeout: float) -> bool:
    """Wait for at most ``timeout`` seconds (``math.inf``: for ever) until ``fd`` has something to read, or its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout == float("inf") else max(0.0, timeout) * 1000))


def shut(fd: int) -> None:
    """End the conversation on ``fd`` from any thread; a statement that hangs in another thread fails at once.

    Done on a duplicate, so that the driver keeps its own descriptor and closes it itself.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def silence(fd: int) -> None:
    """In the child of a fork: put ``/dev/null`` in the place of ``fd``.

    The child shares the socket with its parent. A driver that closes it politely says goodbye on the wire, and the
    server then ends the parent's session with all its locks.
    """
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)
