"""``manage.py distlock edits`` and ``distlock browser``: who holds what through a web page, and ending a lease."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError

from django_distlock.concurrency.text import one_line

from .base import FAILED, WRONG_ARGUMENTS, Subcommand, aligned, confirmed, user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.management.base import CommandParser

    from django_distlock.operations.leases import Held, Leases

HEADINGS = ("DATABASE", "WHAT", "HELD BY", "PRINCIPAL", "FOR", "IDLE", "ENDS IN")


class LeaseCommand(Subcommand):
    """The leases of one feature are listed, or with ``--break`` one of them is ended after a question."""

    description: ClassVar[str] = (
        "A table in a terminal, JSON elsewhere. The page whose lock is ended learns of it at its next beat, and keeps "
        "what was typed. Exit status: 1 if there is nothing to end, or you said no; 69 if a database does not answer."
    )
    leases: ClassVar[Leases]

    def add_arguments(self, parser: CommandParser) -> None:
        name = " ".join(self.leases.arguments).upper()
        parser.add_argument("names", nargs="*", metavar=self.leases.arguments[0], help=f"only some of them: {name}")
        parser.add_argument("--database", metavar="ALIAS", help="one alias in DATABASES instead of all")
        parser.add_argument("--json", action="store_true", help="JSON also in a terminal")
        parser.add_argument("--break", action="store_true", dest="end", help=f"end the lease of {name}")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--reason", default="", help="why, for the log and the signal")

    def run(self, **options: Any) -> int:
        """List, or end what is listed."""
        names, database = options["names"], options["database"]
        if database is not None and database not in self.leases.databases():
            raise ValueError(f"There are no such locks in a database {database!r}.")
        if len(names) > len(self.leases.arguments) or (options["end"] and len(names) < len(self.leases.arguments)):
            which = " ".join(self.leases.arguments).upper()
            raise CommandError(f"Say which lock: --break {which}.", returncode=WRONG_ARGUMENTS)
        found = self.leases.all_held(names) if database is None else self.leases.held(database, names)
        if options["end"]:
            return self._end(found, options["yes"], options["reason"])
        as_table = self.stdout.isatty() and not options["json"]
        self.say(self.table(found) if as_table else json.dumps([self._as_data(each) for each in found], indent=2))
        return 0

    def table(self, found: Sequence[Held]) -> str:
        """The leases as a table."""
        return "\n".join(aligned([HEADINGS, *map(_cells, found)])) if found else self.leases.nothing

    def _as_data(self, each: Held) -> dict[str, Any]:
        row = each.row
        return {
            **self.leases.as_data(each),
            "principal": row.principal,
            "since": row.since.isoformat(),
            "idle": round(row.idle, 3),
            "expires_in": round(row.expires_in, 3),
            "fence": row.fence,
        }

    def _end(self, found: list[Held], yes: bool, reason: str) -> int:
        if not found:
            self.stderr.write("It is not held.")
            return FAILED
        self.say(self.table(found))
        if not yes and not confirmed("End it?"):
            self.stderr.write("Nothing was ended.")
            return FAILED
        why = f"manage.py distlock {self.leases.kind} by {user()}" + (f": {reason}" if reason else "")
        ended = [each for each in found if self.leases.end(each, why)]
        for each in ended:
            self.say(f"Ended: {one_line(each.what)}, held by {one_line(each.row.label)}.")
        if len(ended) < len(found):
            self.stderr.write("It was given back or has changed hands meanwhile.")
        return 0 if ended else FAILED


def _cells(each: Held) -> tuple[str, ...]:
    row = each.row
    times = (f"{value:.0f}s" for value in (row.age, row.idle, row.expires_in))
    return (each.database, one_line(each.what), one_line(row.label), one_line(row.principal), *times)
