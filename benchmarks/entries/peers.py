"""tooz, the one peer that has a driver for nearly every server."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from django.conf import settings

from benchmarks.entries.base import Entry

if TYPE_CHECKING:
    from collections.abc import Callable


class Tooz(Entry):
    """A lock of a tooz coordinator, made once and used again as its page shows it."""

    label = "tooz"
    repeated = quick = False

    @abstractmethod
    def url(self) -> str:
        """Return the server as tooz wants it."""

    def open(self) -> None:
        """Start a coordinator."""
        from tooz import coordination

        self.coordinator = coordination.get_coordinator(self.url(), b"benchmarks")
        self.coordinator.start()
        self.lock = self.coordinator.get_lock(self.name.encode())

    def close(self) -> None:
        """Stop the coordinator."""
        self.coordinator.stop()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock."""
        with self.lock:
            body()


class ToozDatabase(Tooz):
    """tooz on a server that Django connects to."""

    pairs = 2
    database: ClassVar[str]
    template: ClassVar[str]

    def url(self) -> str:
        """Fill in the settings of the Django alias."""
        params = {key: quote(str(value)) for key, value in settings.DATABASES[self.database].items()}
        return self.template.format(**params)
