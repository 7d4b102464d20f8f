"""The leases of pages in browsers as operators see them: edit locks, browser locks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from django_distlock.leases.records import Resource, Row


@dataclass(frozen=True, slots=True)
class Held:
    """What is held, and its row."""

    resource: Resource
    row: Row

    @property
    def database(self) -> str:
        return self.resource.database

    @property
    def what(self) -> str:
        """The object or the name in one line."""
        return f"{self.row.model} {self.row.name}".strip()


class Leases(ABC):
    """The leases of one feature: how they are found, named and ended."""

    kind: ClassVar[str]  # of the subcommand, and of the row in the admin
    help: ClassVar[str]
    nothing: ClassVar[str]  # what the list says without a row
    arguments: ClassVar[tuple[str, ...]]  # the parts of the name of one of them

    @abstractmethod
    def databases(self) -> list[str]:
        """Those that may have some."""

    @abstractmethod
    def held(self, database: str, names: Sequence[str] = (), limit: int | None = None) -> list[Held]:
        """What is held now, the oldest first; all, or those that the ``names`` choose."""

    @abstractmethod
    def end(self, held: Held, reason: str) -> bool:
        """End exactly this lease, and log it. False if it has ended or changed hands.

        BackendUnavailable while a request under the lease keeps its row.
        """

    @abstractmethod
    def as_data(self, held: Held) -> dict[str, Any]:
        """What ``--json`` says besides the times. Programs rely on the keys."""

    def shown(self, found: Sequence[Held], request: HttpRequest, site: AdminSite) -> list[tuple[str, str | None]]:
        """What the admin's page calls each, and its address there."""
        return [(each.what, None) for each in found]

    def ended(self, held: Held, request: HttpRequest, reason: str) -> None:  # noqa: B027 - most do nothing more
        """The admin's page has ended it."""

    def all_held(self, names: Sequence[str] = (), limit: int | None = None) -> list[Held]:
        """Those of all databases. BackendUnavailable if one does not answer."""
        found = [each for database in self.databases() for each in self.held(database, names, limit)]
        return sorted(found, key=lambda each: each.row.since)[:limit]
