"""tooz, the one peer that has a driver for both servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from django.conf import settings

from benchmarks.entries.base import LOCK_NAME, Entry

if TYPE_CHECKING:
    from collections.abc import Callable


class Tooz(Entry):
    """A lock of a tooz coordinator, made once and used again as its page shows it."""

    label = "tooz"
    slow = True
    database: ClassVar[str]
    url: ClassVar[str]

    def open(self) -> None:
        """Start a coordinator for the server of the Django alias."""
        from tooz import coordination

        params = {key: quote(str(value)) for key, value in settings.DATABASES[self.database].items()}
        self.coordinator = coordination.get_coordinator(self.url.format(**params), b"benchmarks")
        self.coordinator.start()
        self.lock = self.coordinator.get_lock(LOCK_NAME.encode())

    def close(self) -> None:
        """Stop the coordinator."""
        self.coordinator.stop()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock."""
        with self.lock:
            body()
