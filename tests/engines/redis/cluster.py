"""A Redis Cluster of three masters, and a proxy that routes commands by key and hides from its clients that there is a
cluster."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Self

from redis import Redis
from redis.crc import key_slot

from django_distlock.backends.redis.connection import PENDING, Push, pack
from tests.conftest import eventually
from tests.engines.redis.resp import parse
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = 16384
NODES = 3
_HELLO = b"%3\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"


class Cluster:
    """Each node has a third of the slots."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = [free_port() for _ in range(NODES)]
        self.clients = [Redis(port=port) for port in self.ports]
        self._processes: list[subprocess.Popen[bytes]] = []

    def url(self, node: int) -> str:
        return f"redis://127.0.0.1:{self.ports[node]}/0"

    @staticmethod
    def node_of(key: bytes) -> int:
        """The node that has a key."""
        return key_slot(key) * NODES // SLOTS

    def __enter__(self) -> Self:
        try:
            self._form()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _form(self) -> None:
        for port in self.ports:
            folder = self._folder / str(port)
            folder.mkdir()
            bus = free_port()
            options = f"--port {port} --cluster-port {bus} --bind 127.0.0.1 --dir {folder} --cluster-enabled yes --save"
            log = (folder / "log").open("wb")
            with log:
                self._processes.append(subprocess.Popen(["redis-server", *options.split(), ""], stdout=log))
        for node, client in enumerate(self.clients):
            eventually(lambda: _answers(client), "a node does not answer")  # noqa: B023
            first, last = -(-SLOTS * node // NODES), -(-SLOTS * (node + 1) // NODES) - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", node + 1)
        for client in self.clients[1:]:
            bus = self.clients[0].config_get("cluster-port")["cluster-port"]
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[0], bus)
        eventually(self._whole, "the cluster does not form")

    def _whole(self) -> bool:
        """Does each know all, and that every slot has a master?"""
        answers = [
            (client.execute_command("CLUSTER", "INFO"), client.execute_command("CLUSTER", "NODES"))
            for client in self.clients
        ]
        return all(b"cluster_state:ok" in info and nodes.count(b" connected ") == NODES for info, nodes in answers)

    def __exit__(self, *exception: object) -> None:
        for client in self.clients:
            client.close()
        for process in self._processes:
            process.kill()
            process.wait(10)


def _answers(client: Redis) -> bool:
    with contextlib.suppress(Exception):
        return bool(client.ping())
    return False


class Router:
    """Listens on a free loopback port, a thread for each client. Scripts go to the node that has their keys, all else
    (and so each subscription) to the first node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name="router", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        nodes = [socket.create_connection(("127.0.0.1", port)) for port in self._cluster.ports]
        ends = [Spout(client), *map(Spout, nodes)]
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, EOFError):
            for end in ends:
                stack.callback(end.sock.close)
            selector = stack.enter_context(selectors.DefaultSelector())
            for end in ends:
                selector.register(end.sock, selectors.EVENT_READ, end)
            for end in ends[1:]:
                end.sock.sendall(pack("HELLO", 3))
                end.one()
            while True:
                for key, _ in selector.select():
                    self._route(ends, key.data)

    def _route(self, ends: list[Spout], ready: Spout) -> None:
        client, *nodes = ends
        ready.fill()
        for value, raw in ready.all():
            if ready is not client:
                client.sock.sendall(raw)
            elif value[0] == b"HELLO":
                client.sock.sendall(_HELLO)
            else:
                scripted = value[0] in (b"EVAL", b"EVALSHA")
                node = nodes[self._cluster.node_of(value[3]) if scripted else 0]
                node.sock.sendall(raw)
                while not self._answered(node, client):
                    pass

    @staticmethod
    def _answered(node: Spout, client: Spout) -> bool:
        """Pass on one value: was it the answer, and no message?"""
        value, raw = node.one()
        client.sock.sendall(raw)
        return type(value) is not Push or value[0] == b"subscribe"


class Spout:
    """A connection, read value by value."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._in = b""

    def fill(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError
        self._in += data

    def all(self) -> list[tuple[object, bytes]]:
        """Every whole value that has come, and its bytes."""
        found = []
        while self._in:
            value, at = parse(self._in, 0)
            if value is PENDING:
                break
            found.append((value, self._in[:at]))
            self._in = self._in[at:]
        return found

    def one(self) -> tuple[object, bytes]:
        """The next value, and its bytes; waits for it."""
        while True:
            if self._in:
                value, at = parse(self._in, 0)
                if value is not PENDING:
                    raw, self._in = self._in[:at], self._in[at:]
                    return value, raw
            self.fill()
