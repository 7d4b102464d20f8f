"""ZooKeeper: kazoo's client, its Lock recipe, tooz and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.entries import ours
from benchmarks.entries.base import Entry
from benchmarks.entries.peers import Tooz
from benchmarks.servers import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = ZooKeeper.lock_alias
ROOT = "/benchmarks"
PAIRS = 8


class Peer(Entry):
    """An entry with a kazoo client of its own."""

    pairs = PAIRS

    def open(self) -> None:
        """Start a session."""
        from kazoo.client import KazooClient

        self.client = KazooClient(hosts=ZooKeeper.hosts())
        self.client.start()
        self.client.ensure_path(ROOT)

    def close(self) -> None:
        """End the session."""
        self.client.stop()
        self.client.close()


class Bare(Peer):
    """Create and delete one ephemeral sequential node: the measure for the group. It excludes nobody."""

    label = "bare kazoo, create + delete"
    contended = exclusive = False

    def cycle(self, body: Callable[[], object]) -> None:
        """Have a node while ``body`` runs."""
        node = self.client.create(f"{ROOT}/bare-", b"", ephemeral=True, sequence=True)
        body()
        self.client.delete(node)


class Kazoo(Peer):
    """kazoo's Lock recipe, made once and used again as its page shows it."""

    label = "kazoo Lock"

    def open(self) -> None:
        """Start a session and make the lock."""
        super().open()
        self.lock = self.client.Lock(f"{ROOT}/kazoo-{self.name}", "benchmarks")

    def cycle(self, body: Callable[[], object]) -> None:
        """Wait in the queue of nodes."""
        with self.lock:
            body()


class ToozZooKeeper(Tooz):
    """tooz, which uses kazoo's Lock."""

    pairs = PAIRS

    def url(self) -> str:
        """Return the address."""
        return f"zookeeper://{ZooKeeper.hosts()}"


class Ours(ours.Ours):
    """Our own queue of nodes."""

    pairs = PAIRS
    alias = ALIAS


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    pairs = PAIRS
    alias = ALIAS


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    pairs = PAIRS
    alias = ALIAS


ENTRIES: tuple[type[Entry], ...] = (Bare, Kazoo, ToozZooKeeper, Ours, OursReused, OursAsync)
