"""Redlock on five Redis servers: redis-py clients asked one after the other, pottery and ours, near and far."""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, ClassVar

from benchmarks.entries import ours
from benchmarks.entries.base import Entry
from benchmarks.entries.redis import COMPARE_AND_DELETE, TTL
from benchmarks.servers import Redlock, RedlockFar

if TYPE_CHECKING:
    from collections.abc import Callable

FAR_PAIRS = 2
PAUSE = 0.02  # at most, before a refused acquire is tried again


class Peer(Entry):
    """An entry with a redis-py client for every node."""

    pairs = 10
    server: ClassVar[type[Redlock]] = Redlock

    def open(self) -> None:
        """Connect to every node."""
        self.clients = self.server.clients()
        for client in self.clients:
            client.ping()

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients:
            client.close()


class Bare(Peer):
    """SET NX PX on one node after the other, then the script that compares and deletes: the measure for the group.

    No majority within the time that the lease leaves, no drift of clocks, no node that may fail.
    """

    label = "bare redis-py, one node after the other"

    def open(self) -> None:
        """Connect and load the script everywhere."""
        super().open()
        for client in self.clients:
            self.script = client.script_load(COMPARE_AND_DELETE)
        self.key, self.token = f"bare:{self.name}", uuid.uuid4().hex

    def cycle(self, body: Callable[[], object]) -> None:
        """Own the key on a majority while ``body`` runs."""
        while sum(map(self.take, self.clients)) <= len(self.clients) // 2:
            self.free()
            time.sleep(random.uniform(0, PAUSE))
        body()
        self.free()

    def take(self, client: object) -> bool:
        """Ask one node."""
        return bool(client.set(self.key, self.token, nx=True, px=TTL * 1000))

    def free(self) -> None:
        """Release on every node."""
        for client in self.clients:
            client.evalsha(self.script, 1, self.key, self.token)


class Pottery(Peer):
    """pottery's Redlock with five masters."""

    label = "pottery Redlock"

    def open(self) -> None:
        """Import the peer and connect."""
        from pottery import Redlock as Lock

        self.lock = Lock
        super().open()

    def cycle(self, body: Callable[[], object]) -> None:
        """Try again after up to 200 ms, as it always does."""
        with self.lock(key=self.name, masters=set(self.clients), auto_release_time=TTL):
            body()


class Ours(ours.Ours):
    """A majority of the five."""

    pairs = Peer.pairs
    alias = Redlock.lock_alias


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    pairs = Peer.pairs
    alias = Redlock.lock_alias


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    pairs = Peer.pairs
    alias = Redlock.lock_alias


class BareFar(Bare):
    """One node after the other, each behind a proxy."""

    pairs, server = FAR_PAIRS, RedlockFar


class PotteryFar(Pottery):
    """pottery with five masters behind proxies."""

    pairs, server = FAR_PAIRS, RedlockFar


class OursFar(Ours):
    """A majority of five behind proxies."""

    pairs, alias = FAR_PAIRS, RedlockFar.lock_alias

    def open(self) -> None:
        """Configure the lock alias for the proxies."""
        RedlockFar.configure()
        super().open()


class OursAsyncFar(OursAsync):
    """The same, awaited."""

    pairs, alias = FAR_PAIRS, RedlockFar.lock_alias

    def open(self) -> None:
        """Configure the lock alias for the proxies."""
        RedlockFar.configure()
        super().open()


ENTRIES: tuple[type[Entry], ...] = (Bare, Pottery, Ours, OursReused, OursAsync)
FAR: tuple[type[Entry], ...] = (BareFar, PotteryFar, OursFar, OursAsyncFar)
