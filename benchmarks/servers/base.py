"""What the program must know of every server under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.conf import settings

EVERY_PART = ("uncontended", "contended")


class Server(ABC):
    """One engine of the benchmark; ``lock_alias`` is its name in DISTLOCK."""

    lock_alias: ClassVar[str]
    embedded: ClassVar[bool] = False  # runs inside the client process
    parts: ClassVar[tuple[str, ...]] = EVERY_PART

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return what the server says it is."""

    @classmethod
    @abstractmethod
    def pids(cls) -> list[int]:
        """Return the server's processes on this machine; empty if it runs elsewhere or inside this process."""


class DatabaseServer(Server):
    """A server that Django connects to; ``alias`` is its name in DATABASES."""

    alias: ClassVar[str]

    @classmethod
    def params(cls) -> dict[str, Any]:
        """Return the settings of the alias, or say what is missing."""
        try:
            return settings.DATABASES[cls.alias]
        except KeyError:
            raise SystemExit(
                f'settings.DATABASES has no alias "{cls.alias}": start the private servers with `make services`'
            ) from None
