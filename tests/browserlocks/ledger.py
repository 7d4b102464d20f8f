"""A ledger that knows nothing of locks: who enters and leaves a section tells it, and it says if two were inside."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """One for all requests of the test server. Pages await the answer to their leaving before they give a lock back."""

    test: int = 0  # what pages of an earlier test say on their way out does not count
    inside: dict[str, list[str]] = field(default_factory=dict)  # by room, who is in it
    entered: list[tuple[str, int | None]] = field(default_factory=list)  # who, with which fence, in this order
    overlaps: list[tuple[str, ...]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        with self._lock:
            self.test += 1
            for found in (self.inside, self.entered, self.overlaps):
                found.clear()

    def enter(self, room: str, who: str, fence: int | None) -> None:
        with self._lock:
            present = self.inside.setdefault(room, [])
            if present:
                self.overlaps.append((*present, who))
            present.append(who)
            self.entered.append((who, fence))

    def leave(self, room: str, who: str) -> None:
        with self._lock:
            if who in self.inside.get(room, []):
                self.inside[room].remove(who)

    def check(self) -> None:
        """No two were inside at once, and fences rose."""
        assert self.overlaps == []
        fences = [fence for _, fence in self.entered if fence is not None]
        assert fences == sorted(set(fences))


ledger = Ledger()
