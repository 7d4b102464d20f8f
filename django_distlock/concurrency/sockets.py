"""Operations on the socket of a lock session that its driver does not offer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket

from .clock import monotonic

# poll() counts milliseconds in 31 bits (24 days): a longer timeout is treated as none.
LONGEST_POLL = 2_147_483.0


def readable(fd: int, timeout: float) -> bool:
    """Wait for at most ``timeout`` seconds (``math.inf``: without end) until ``fd`` can be read or is closed."""
    return _poll(fd, select.POLLIN, timeout)


def _poll(fd: int, events: int, timeout: float) -> bool:
    if fd < 0:  # the driver has closed it; reading will raise the error
        return True
    poll = select.poll()
    poll.register(fd, events)
    # rounded up: a poll that returns early would be taken for the deadline
    if timeout > LONGEST_POLL:
        return bool(poll.poll())
    return bool(poll.poll(math.ceil(timeout * 1000) if timeout > 0 else 0))


class Ready:
    """Waiting for a socket, as a target for :class:`~django_distlock.concurrency.flow.Step`."""

    @staticmethod
    def poll(fd: int, write: bool, until: float) -> bool:
        """Wait until ``fd`` can be read (or written); False at the monotonic time ``until``."""
        return _poll(fd, select.POLLOUT if write else select.POLLIN, until - monotonic())

    @staticmethod
    async def apoll(fd: int, write: bool, until: float) -> bool:
        """:meth:`poll` for a task."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        (loop.add_writer if write else loop.add_reader)(fd, _settle, future, True)
        timer = None
        if until != math.inf:
            timer = loop.call_later(max(0.0, until - monotonic()), _settle, future, False)
        try:
            return await future
        finally:
            (loop.remove_writer if write else loop.remove_reader)(fd)
            if timer is not None:
                timer.cancel()


READY = Ready()


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def shut(fd: int) -> None:
    """Shut down the connection on ``fd``, from any thread; a statement that hangs in another thread fails at once.

    Only a duplicate of the descriptor is closed; the original is the driver's.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:  # OSError: it is closed already
        duplicate.shutdown(socket.SHUT_RDWR)


def silence(fd: int) -> None:
    """In the child of a fork: replace ``fd`` by ``/dev/null``.

    The child shares the socket with its parent. A driver that closes a connection sends a goodbye to the server, which
    would end the parent's session with all its locks.
    """
    if fd < 0:
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)
