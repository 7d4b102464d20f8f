"""A network that can die: packets are not answered any more, not even by the kernel at the other end.

A process moves into a network namespace of its own, in which nothing listens but a relay to a real server, and takes
the interface down. A proxy cannot do that: its kernel acknowledges what it swallows.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
CONNECTIONS = 20


class NoNetwork(Exception):
    """This kernel lets the process have no network of its own."""


class Network:
    """To be made before the process has a connection or a second thread."""

    def __init__(self) -> None:
        # a socket stays in the network in which it was made
        self._outer = [socket.socket() for _ in range(CONNECTIONS)]
        flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
        if ctypes.CDLL(None, use_errno=True).unshare(flags):
            raise NoNetwork(os.strerror(ctypes.get_errno()))
        self._switch(IFF_UP)

    def relay(self, host: str, port: int) -> int:
        """The port at which the server is reached in here."""
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener, (host, port)), daemon=True).start()
        return int(listener.getsockname()[1])

    def die(self) -> None:
        self._switch(0)

    def _accept(self, listener: socket.socket, server: tuple[str, int]) -> None:
        while True:
            inner, outer = listener.accept()[0], self._outer.pop()
            outer.connect(server)
            for source, target in ((inner, outer), (outer, inner)):
                threading.Thread(target=_move, args=(source, target), daemon=True).start()

    @staticmethod
    def _switch(flags: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def _move(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the network is dead: the other end is not told
        pass
