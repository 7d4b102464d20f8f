"""What the program must know of every server under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.conf import settings

EVERY_PART = ("uncontended", "contended", "tasks", "growth")


class Server(ABC):
    """One engine of the benchmark; ``lock_alias`` is its name in DISTLOCK."""

    lock_alias: ClassVar[str]
    embedded: ClassVar[bool] = False  # runs inside the client process
    parts: ClassVar[tuple[str, ...]] = EVERY_PART
    elsewhere: ClassVar[int] = 10_000  # the most locks that other processes hold in `growth`

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return what the server says it is."""

    @classmethod
    @abstractmethod
    def pids(cls) -> list[int]:
        """Return the server's processes on this machine; empty if it runs elsewhere or inside this process."""

    @classmethod
    @abstractmethod
    def sessions_of(cls, pid: int) -> int:
        """Return how many sessions the process ``pid`` has, as the server sees it."""

    @classmethod
    def requests(cls) -> int:
        """Return how many requests the server has had from clients so far; for the part ``idle``."""
        raise NotImplementedError(f"{cls.__name__} does not count its requests here")


class DatabaseServer(Server):
    """A server that Django connects to; ``alias`` is its name in DATABASES."""

    alias: ClassVar[str]
    parts = (*EVERY_PART, "idempotency", "editing", "browser")

    @classmethod
    def params(cls) -> dict[str, Any]:
        """Return the settings of the alias, or say what is missing."""
        try:
            return settings.DATABASES[cls.alias]
        except KeyError:
            raise SystemExit(
                f'settings.DATABASES has no alias "{cls.alias}": start the private servers with `make services`'
            ) from None
