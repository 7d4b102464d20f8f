"""Operations on the socket of a lock session that its driver does not offer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
from typing import TYPE_CHECKING

from . import clock
from .flow import in_task

if TYPE_CHECKING:
    from collections.abc import Sequence

# poll() counts milliseconds in 31 bits (24 days): a longer timeout is treated as none.
LONGEST_POLL = 2_147_483.0
# After two seconds of silence the kernel asks each second, three times, whether the other end is there (macOS: after
# two hours). What was sent must be acknowledged within five; this one is in milliseconds.
KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}


def readable(fd: int, timeout: float, events: int = select.POLLIN) -> bool:
    """Wait for at most ``timeout`` seconds (``math.inf``: without end) until ``fd`` can be read or is closed; with
    other ``events``, until one of them."""
    if fd < 0:  # the driver has closed it; reading will raise the error
        return True
    watch = select.poll()
    watch.register(fd, events)
    return noticed(watch, timeout)


def noticed(watch: select.poll, timeout: float) -> bool:
    """Wait for at most ``timeout`` seconds until one of the files of ``watch`` is ready."""
    if timeout > LONGEST_POLL:
        return bool(watch.poll())
    # rounded up: a poll that returns early would be taken for the deadline
    return bool(watch.poll(math.ceil(timeout * 1000) if timeout > 0 else 0))


class Bell:
    """Wakes a thread that polls a socket and this. Its files are closed with the last reference: whoever rings may not
    meet another file."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._write, b"!")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65536)  # a pipe holds no more

    def abandon(self) -> None:
        """Close its files, in the child of a fork: nobody else has it there."""
        with contextlib.suppress(AttributeError):  # there was no file to be had, or this has been called
            os.close(self._read)
            os.close(self._write)
            del self._read, self._write

    __del__ = abandon


def poll(fd: int, write: bool, until: float) -> bool:
    """Wait in this thread until ``fd`` can be read (or written); False at the monotonic time ``until``."""
    return readable(fd, until - clock.now(), select.POLLOUT if write else select.POLLIN)


async def ready(fd: int, write: bool, until: float) -> bool:
    """:func:`poll` for threads and tasks."""
    if not in_task():
        return poll(fd, write, until)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    (loop.add_writer if write else loop.add_reader)(fd, _settle, future, True)
    timer = None
    if until != math.inf:
        timer = loop.call_later(max(0.0, until - clock.now()), _settle, future, False)
    try:
        return await future
    finally:
        (loop.remove_writer if write else loop.remove_reader)(fd)
        if timer is not None:
            timer.cancel()


async def any_ready(fds: Sequence[int], until: float) -> list[int]:
    """Wait until one of ``fds`` can be read. Those that can; none at the monotonic time ``until``."""
    if any(fd < 0 for fd in fds):  # the driver has closed it; reading will raise the error
        return [fd for fd in fds if fd < 0]
    watch = select.poll()
    for fd in fds:
        watch.register(fd, select.POLLIN)
    if not in_task():
        noticed(watch, until - clock.now())
    elif not watch.poll(0) and clock.now() < until:
        await _any_noticed(fds, until)
    return [fd for fd, _ in watch.poll(0)]


async def _any_noticed(fds: Sequence[int], until: float) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    for fd in fds:
        loop.add_reader(fd, _settle, future, True)
    timer = None if until == math.inf else loop.call_later(max(0.0, until - clock.now()), _settle, future, False)
    try:
        await future
    finally:
        for fd in fds:
            loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def shut(fd: int) -> None:
    """Shut down the connection on ``fd``, from any thread; a statement that hangs in another thread fails at once.

    Only a duplicate of the descriptor is closed; the original is the driver's.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:  # OSError: it is closed already
        duplicate.shutdown(socket.SHUT_RDWR)


def keep_alive(fd: int) -> None:
    """Have the kernel end the connection on ``fd`` within about five seconds if nothing at the other end answers. By
    default that takes hours, and a wait without a timeout would hang for as long."""
    if fd < 0:
        return
    blocking = os.get_blocking(fd)
    try:
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    duplicate.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:  # it is no socket of TCP
        pass
    finally:
        os.set_blocking(fd, blocking)  # socket.setdefaulttimeout() and gevent have changed it for both descriptors


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
