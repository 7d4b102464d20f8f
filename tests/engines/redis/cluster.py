"""A Redis Cluster of three masters, and a proxy that routes commands by key and hides from its clients that there is a
cluster."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from typing import TYPE_CHECKING, Self

from redis import Redis
from redis.crc import key_slot

from django_distlock.backends.redis.connection import pack
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
    """Listens on a free loopback port. Scripts go to the node that has their keys, all else (and so each subscription)
    to the first node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = serving.result(20)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nodes = [await asyncio.open_connection("127.0.0.1", port) for port in self._cluster.ports]
        relays = []
        try:
            for answers, commands in nodes:
                commands.write(pack("HELLO", 3))
                await value_of(answers)
                relays.append(asyncio.create_task(self._relay(answers, writer)))
            while True:
                raw = await value_of(reader)
                (word, *words), _ = parse(raw, 0)
                if word == b"HELLO":
                    writer.write(_HELLO)
                else:
                    node = self._cluster.node_of(words[2]) if word in (b"EVAL", b"EVALSHA") else 0
                    nodes[node][1].write(raw)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            for task in relays:
                task.cancel()
            for end in (writer, *(commands for _, commands in nodes)):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    @staticmethod
    async def _relay(answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                client.write(await value_of(answers))


async def value_of(reader: asyncio.StreamReader) -> bytes:
    """The bytes of the next value."""
    raw = await reader.readuntil(b"\r\n")
    kind, size = raw[:1], raw[1:-2]
    if kind in b"$=!":
        return raw + await reader.readexactly(int(size) + 2) if int(size) >= 0 else raw
    for _ in range(int(size) * (2 if kind == b"%" else 1) if kind in b"*~>%" else 0):
        raw += await value_of(reader)
    return raw
