"""A TCP proxy in front of a database server, for the faults that a network has: it counts round trips, and can hold up
or swallow what passes, fall silent with the connections open, or cut them.

    with Proxy(host, port) as proxy:
        proxy.blackhole()      # from here on nothing passes; packets are still acknowledged, connects still accepted
        proxy.swallow(3)       # the third request from here on reaches the server, its reply and all after it do not
        held = proxy.hold("reply")    # a gate: the next request reaches the server, its reply stays here
        held.wait()                   # until it is here
        held.pass_on()

A *request* is what a client sends at one go after the server's last reply: one round trip.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Direction: TypeAlias = Literal["request", "reply"]

RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST
PATIENCE = 25.0  # seconds


class Held:
    """A request, or the reply to one, that stays in the proxy, and with it all that follows on its connection in that
    direction."""

    def __init__(self, proxy: Proxy, nth: int) -> None:
        self._proxy = proxy
        self.nth = nth  # requests until then
        self.outlives = False  # its client
        self.data = b""
        self._pair: Pair | None = None
        self._arrived = threading.Event()

    def wait(self) -> None:
        """Until it is here."""
        assert self._arrived.wait(PATIENCE), "nothing came to be held"

    def pass_on(self) -> None:
        """Let it go on; what follows passes."""
        with self._proxy._guard:
            self._proxy._let_go(self, self._pair)

    def take(self, pair: Pair, data: bytes) -> None:
        self._pair = pair
        self.data += data
        self._arrived.set()


class Pair:
    """One client and its connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.silent = False  # this connection alone passes nothing more to its client
        self.passing = 0  # but for so many bytes
        self.asking = False  # the last thing that passed came from the client
        self.held: dict[Direction, Held] = {}


class Proxy:
    """Listens on a free loopback port; one thread moves the bytes."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(100))
        self._guard = threading.RLock()
        self._pairs: list[Pair] = []
        self._ended = False
        self._silent = False
        self._delay = 0.0
        self._swallow_in: int | None = None
        self._then_cut = False
        self._passing = 0
        self._holding: dict[Direction, Held] = {}
        self._detained: Held | None = None
        self._rewritten: list[tuple[bytes, bytes]] = []
        self.on_request: Callable[[int], None] = lambda number: None
        self.requests = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended = True
        self._wake.send(b"x")
        self._thread.join(10)
        for pair in self._pairs:
            pair.client.close()
            pair.server.close()
        for other in (self._listener, self._wake, self._woken):
            other.close()
        self._selector.close()

    # faults

    def blackhole(self) -> None:
        """From here on nothing passes in either direction. What is sent is acknowledged and never answered."""
        with self._guard:
            self._silent = True

    def heal(self) -> None:
        """Pass everything again; what was sent meanwhile arrives late."""
        with self._guard:
            self._silent = False
            self._swallow_in = None
            self._delay = 0.0
            self._then_cut = False
            for pair in self._pairs:
                pair.silent = False
        self._wake.send(b"x")

    def swallow(self, nth: int, *, cut: bool = False, passing: int = 0) -> None:
        """The ``nth`` request from here on reaches the server; of its reply only ``passing`` bytes come back, and
        nothing after it on that connection. ``cut``: the client's connection is closed instead of left silent."""
        with self._guard:
            self._swallow_in = nth
            self._then_cut = cut
            self._passing = passing

    def hold(self, what: Direction, nth: int = 1) -> Held:
        """Hold up the ``nth`` request from here on, or the reply to it. One gate of each kind at a time."""
        with self._guard:
            self._holding[what] = held = Held(self, nth)
        return held

    def _let_go(self, held: Held, pair: Pair | None) -> None:
        self._holding = {what: each for what, each in self._holding.items() if each is not held}
        if pair is None:
            return
        for what, end in (("request", pair.server), ("reply", pair.client)):
            if pair.held.get(what) is held:  # type: ignore[call-overload]
                del pair.held[what]  # type: ignore[arg-type]
                pair.asking = what == "request"
                self._write(pair, end, held.data)

    def _hold_next(self, pair: Pair) -> None:
        """A request begins: is it, or its reply, to be held?"""
        for what, held in list(self._holding.items()):
            held.nth -= not pair.asking
            if held.nth == 0 or (held.nth == 1 and pair.asking):  # a request behind another one is a next one, too
                pair.held[what] = self._holding.pop(what)

    def detain(self, nth: int) -> None:
        """:meth:`hold` the ``nth`` request, and all after it, until :meth:`deliver`, even if the client goes away."""
        self._detained = self.hold("request", nth)
        self._detained.outlives = True

    def deliver(self) -> None:
        """Let what was detained arrive."""
        if self._detained is not None:
            self._detained.pass_on()
            self._detained = None

    def delay(self, seconds: float) -> None:
        """Every further piece of data is held up for that long, one after the other."""
        self._delay = seconds

    def rewrite(self, old: bytes, new: bytes) -> None:
        """Put ``new`` in the place of ``old`` in all that passes, both ways. Of one length, for those of packets."""
        assert len(old) == len(new)
        self._rewritten.append((old, new))

    def cut(self, *, reset: bool = False) -> None:
        """Close every connection on both sides; new ones are accepted."""
        with self._guard:
            for pair in list(self._pairs):
                self._close(pair, reset=reset)

    def drop_clients(self) -> None:
        """Close the clients' side only: the server sees its sessions go on."""
        with self._guard:
            for pair in self._pairs:
                self._close_client(pair)

    # moving bytes

    def _run(self) -> None:
        while not self._ended:
            ready = [key for key, _ in self._selector.select(5)]
            unread = False
            for key in ready:
                with self._guard, contextlib.suppress(KeyError):  # unregistered meanwhile
                    if self._silent and key.fileobj not in (self._listener, self._woken):
                        unread = True
                    else:
                        key.data()
            if unread:
                time.sleep(0.005)  # what is left unread makes select() return at once

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self.target)
        except OSError:  # the server is down: so is this door
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = Pair(client, server)
        self._pairs.append(pair)
        self._selector.register(client, selectors.EVENT_READ, lambda: self._to_server(pair))
        self._selector.register(server, selectors.EVENT_READ, lambda: self._to_client(pair))

    def _to_server(self, pair: Pair) -> None:
        data = self._read(pair, pair.client)
        if not data:
            return
        self._hold_next(pair)
        if not pair.asking:
            pair.asking = True
            self.requests += 1
            if self._swallow_in is not None:
                self._swallow_in -= 1
                if self._swallow_in == 0:
                    self._swallow_in = None
                    pair.silent = True
                    pair.passing = self._passing
            self.on_request(self.requests)
        if "request" in pair.held:
            pair.held["request"].take(pair, data)
            return
        self._write(pair, pair.server, data)

    def _to_client(self, pair: Pair) -> None:
        data = self._read(pair, pair.server)
        if not data:
            return
        if "reply" in pair.held:
            pair.held["reply"].take(pair, data)
            return
        pair.asking = False
        if not pair.silent:
            self._write(pair, pair.client, data)
        elif pair.passing:
            self._write(pair, pair.client, data[: pair.passing])
            pair.passing = 0
        elif self._then_cut:
            self._close_client(pair)

    def _read(self, pair: Pair, end: socket.socket) -> bytes:
        if self._delay:
            time.sleep(self._delay)
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        held = pair.held.get("request")
        if not data and end is pair.client and held is not None and held.outlives:
            self._selector.unregister(end)
        elif not data:
            self._close(pair)
        for old, new in self._rewritten:
            data = data.replace(old, new)
        return data

    def _write(self, pair: Pair, end: socket.socket, data: bytes) -> None:
        try:
            end.sendall(data)
        except OSError:
            self._close(pair)

    def _close_client(self, pair: Pair) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pair.client)
        with contextlib.suppress(OSError):
            pair.client.shutdown(socket.SHUT_RDWR)

    def _close(self, pair: Pair, *, reset: bool = False) -> None:
        if pair not in self._pairs:
            return
        self._pairs.remove(pair)
        held = pair.held.get("reply")
        if held is not None and not held._arrived.is_set():  # what ends a connection has no reply: the next one is held
            held.nth = 1
            self._holding.setdefault("reply", held)
        for end in (pair.client, pair.server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.close()
