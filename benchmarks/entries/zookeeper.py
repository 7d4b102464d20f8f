"""ZooKeeper: two bare requests of kazoo's, kazoo's own lock, tooz and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.entries import ours
from benchmarks.entries.base import LOCK_NAME, Entry
from benchmarks.servers import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = ZooKeeper.lock_alias


class Bare(Entry):
    """Create an ephemeral node and delete it: what any lock does at least. It excludes nobody."""

    label = "bare create + delete"
    contended = False

    def open(self) -> None:
        """Connect, and make the node above."""
        self.client = ZooKeeper.connect()
        self.client.ensure_path("/bare")

    def close(self) -> None:
        """Close the session."""
        self.client.stop()
        self.client.close()

    def cycle(self, body: Callable[[], object]) -> None:
        """Two requests, one after the other."""
        path = self.client.create("/bare/x-", b"", ephemeral=True, sequence=True)
        body()
        self.client.delete(path)


class Kazoo(Bare):
    """kazoo's recipe, made once and used again as its page shows it."""

    label = "kazoo Lock"
    contended = True

    def open(self) -> None:
        """Connect and make the lock."""
        super().open()
        self.lock = self.client.Lock("/kazoo/" + LOCK_NAME)

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock."""
        with self.lock:
            body()


class Tooz(Entry):
    """A lock of a tooz coordinator, made once and used again as its page shows it."""

    label = "tooz"

    def open(self) -> None:
        """Start a coordinator."""
        from tooz import coordination

        self.coordinator = coordination.get_coordinator(f"kazoo://{ZooKeeper.address()}", b"benchmarks")
        self.coordinator.start()
        self.lock = self.coordinator.get_lock(LOCK_NAME.encode())

    def close(self) -> None:
        """Stop the coordinator."""
        self.coordinator.stop()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock."""
        with self.lock:
            body()


class Ours(ours.Ours):
    """The lock on the process' own session."""

    alias = ALIAS


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    alias = ALIAS


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    alias = ALIAS


ENTRIES: tuple[type[Entry], ...] = (Bare, Kazoo, Tooz, Ours, OursReused, OursAsync)
