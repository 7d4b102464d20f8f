"""Base class of the subcommands that list leases of users and end one: edit locks, browser locks."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .base import FAILED, Subcommand, aligned, confirmed, user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.management.base import CommandParser

R = TypeVar("R")


class Leases(Subcommand, Generic[R]):
    """``rows`` are listed, or with ``--break`` ended after a question."""

    name: ClassVar[str]  # of the subcommand
    nothing: ClassVar[str]  # what the list says without a row
    none_to_end: ClassVar[str]
    headings: ClassVar[tuple[str, ...]]

    @staticmethod
    def add_common(parser: CommandParser, end: str) -> None:
        """Add the arguments of all; ``end`` is the help of ``--break``."""
        parser.add_argument("--json", action="store_true", help="JSON also in a terminal")
        parser.add_argument("--break", action="store_true", dest="end", help=end)
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--reason", default="", help="why, for the log and the signal")

    @abstractmethod
    def rows(self, **options: Any) -> list[R]:
        """The leases that the arguments choose. ValueError or CommandError for wrong ones."""

    @abstractmethod
    def end(self, row: R, why: str) -> bool:
        """End the lease; False if it has ended or changed hands."""

    @abstractmethod
    def as_data(self, row: R) -> dict[str, Any]:
        """One entry of ``--json``. Programs rely on its keys."""

    @classmethod
    @abstractmethod
    def cells_of(cls, row: R) -> tuple[str, ...]:
        """One line of the table."""

    @abstractmethod
    def described(self, row: R) -> str:
        """The lease that was ended, in one sentence."""

    def run(self, **options: Any) -> int:
        """List, or end what is listed."""
        found = self.rows(**options)
        if options["end"]:
            return self._end(found, options["yes"], options["reason"])
        as_table = self.stdout.isatty() and not options["json"]
        self.say(self.table(found) if as_table else json.dumps([self.as_data(row) for row in found], indent=2))
        return 0

    @classmethod
    def table(cls, rows: Sequence[R]) -> str:
        """The rows as a table."""
        if not rows:
            return cls.nothing
        return "\n".join(aligned([cls.headings, *(cls.cells_of(row) for row in rows)]))

    def _end(self, found: list[R], yes: bool, reason: str) -> int:
        if not found:
            self.stderr.write(self.none_to_end)
            return FAILED
        self.say(self.table(found))
        if not yes and not confirmed("End it?"):
            self.stderr.write("Nothing was ended.")
            return FAILED
        why = f"manage.py distlock {self.name} by {user()}" + (f": {reason}" if reason else "")
        ended = [row for row in found if self.end(row, why)]
        for row in ended:
            self.say(f"Ended: {self.described(row)}.")
        if len(ended) < len(found):
            self.stderr.write("It was given back or has changed hands meanwhile.")
        return 0 if ended else FAILED
