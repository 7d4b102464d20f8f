"""The servers of one alias: a single one, or the nodes of a Redis Cluster.

The keys of a lock share a hash tag, and so a node. A node that has not got them names the one that has (MOVED), which
is remembered. See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/.
"""

from __future__ import annotations

import math
from binascii import crc_hqx
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE

from .connection import ConnectionFailed
from .server import Moved, Refused, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .scripts import Keys, Request
    from .target import Target

SLOTS = 16384
# How many nodes one call asks: the one that had the slot, the one that it names, and once more while slots move.
MOST_ASKED = 3
# A server that has not answered is asked for no renewal for this time; seconds. The leases of a process are renewed in
# turn, and those at a node that hangs would keep the others waiting.
LULL = 0.25


def slot_of(key: bytes) -> int:
    """The slot of a key with a hash tag."""
    start = key.index(b"{") + 1
    return crc_hqx(key[start : key.index(b"}", start)], 0) % SLOTS


class Servers:
    """``name`` and ``opened`` are those of each :class:`Server`."""

    def __init__(self, target: Target, name: str, opened: Callable[[], object]) -> None:
        self._name, self._opened = name, opened
        self._named = Server(target, name, opened)  # in the settings
        self._first = self._named  # is asked for a slot of which nothing is known
        self._nodes: dict[str, Server] = {}
        self._slots: dict[int, Server] = {}

    def __iter__(self) -> Iterator[Server]:
        return iter([self._named, *list(self._nodes.values())])

    def _of(self, keys: Keys) -> Server:
        return self._slots.get(slot_of(keys[0]), self._first) if self._slots else self._first

    async def call(
        self,
        keys: Keys,
        request: Callable[[Server], Request],
        until: float,
        withdrawal: Callable[[], Request] | None = None,
        *,
        renews: bool = False,
    ) -> tuple[Any, bool]:
        """:meth:`Server.call` at the one that has the keys, for which ``request`` is made. ``renews``: it is one of the
        renewals of the keepalive thread."""
        asked, least = 0, max(until, clock.now() + SILENCE)  # of all servers together, each of which may be slow
        while True:
            server = self._of(keys)
            asked += 1
            if renews and clock.now() < server.silent_at + LULL:
                raise ConnectionFailed("Redis has just not answered in time.", silent=True)
            try:
                answer = await server.call(request(server), until, withdrawal, least)
                server.silent_at = -math.inf
                return answer
            except Moved as moved:
                if asked == MOST_ASKED:
                    raise
                self._slots[moved.slot] = self._at(moved.address, server)
            except Refused:
                raise
            except ConnectionFailed as error:
                if error.silent:
                    server.silent_at = clock.now()
                self._forget(server)
                raise

    def _at(self, address: str, asked: Server) -> Server:
        """The node of an address that ``asked`` has told."""
        if address not in self._nodes:
            host, _, port = address.rpartition(":")
            self._nodes.setdefault(address, Server(asked.target.at(host, int(port)), self._name, self._opened))
        return self._nodes[address]

    def _forget(self, failed: Server) -> None:
        """Its slots may be another node's by now, which each other one knows."""
        self._slots = {slot: server for slot, server in self._slots.items() if server is not failed}
        if failed is self._first:
            self._first = next((server for server in self if server is not failed), failed)

    def primaries(self, patience: float) -> list[tuple[Target, list[range] | None]]:
        """The servers that have locks, each with its slots; None: it has all. For operators: redis-py's client asks."""
        target = self._first.target
        with target.client(patience) as client:
            if not (self._nodes or target.clustered):
                return [(target, None)]
            slots: dict[Target, list[range]] = {}
            for first, last, (host, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                address = f"{(host or b'').decode()}:{port}"
                slots.setdefault(self._at(address, self._first).target, []).append(range(first, last + 1))
            return list(slots.items())

    def tick(self, now: float) -> bool:
        """Close idle connections. False if there is nothing to look after."""
        busy = [server.tick(now) for server in self]
        return any(busy)

    def close(self) -> None:
        """Close every connection; a caller that waits on one gets ConnectionFailed."""
        for server in self:
            server.close()

    def after_fork(self) -> None:
        """In the child: the connections are the parent's."""
        for server in self:
            server.after_fork()
