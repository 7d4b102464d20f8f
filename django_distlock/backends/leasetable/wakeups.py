"""Wake-ups from one process of a host to another, for threads that wait for a lease on SQLite.

A wake-up says nothing: the waiter reads the lease. One that is lost, because its sender was killed or the two are in
different network namespaces, costs the time until the waiter's next look. Only Linux has addresses that need no file.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading

SUPPORTED = sys.platform == "linux"
# The first byte makes it an address without a file (https://man7.org/linux/man-pages/man7/unix.7.html).
PREFIX = "\0distlock-"


class WakeSocket:
    """The socket at which one thread is woken. Its tickets have ``address``."""

    def __init__(self) -> None:
        self.address = secrets.token_hex(8)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(PREFIX + self.address)

    def wait(self, seconds: float) -> bool:
        """Sleep for at most ``seconds``. True if woken, at once if that was before."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1)
        except (TimeoutError, BlockingIOError):
            return False
        return True

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()


class WakeSockets:
    """The sockets of the threads of this process, each made when its thread first waits."""

    def __init__(self) -> None:
        self._sender: socket.socket | None = None
        # was the last waiter whose turn came woken?
        self.work = True
        self.close()

    def close(self) -> None:
        """Close all of them; one whose thread waits is closed at the end of its wait."""
        # without a reference to it the sockets of all threads end
        self._of_thread = threading.local()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def mine(self) -> WakeSocket | None:
        """The socket of this thread; None if there is none to be had."""
        mine: WakeSocket | None = getattr(self._of_thread, "socket", None)
        if mine is None and SUPPORTED:
            with contextlib.suppress(OSError):
                mine = self._of_thread.socket = WakeSocket()
        return mine

    def wake(self, address: str) -> None:
        """Wake the thread that waits at ``address``."""
        with contextlib.suppress(OSError):  # it is gone, or was woken so often that there is no room for more
            if self._sender is None:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.sendto(b"\0", socket.MSG_DONTWAIT, PREFIX + address)
