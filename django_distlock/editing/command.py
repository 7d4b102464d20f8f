"""``manage.py distlock edits``: who edits what, and ending a lease."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError
from django.db import connections

from django_distlock.concurrency.text import one_line
from django_distlock.operations.commands.base import WRONG_ARGUMENTS, Subcommand
from django_distlock.operations.commands.breaking import user
from django_distlock.operations.commands.listing import cells, fitted

from .listing import break_edit, list_edits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.management.base import CommandParser

    from .records import EditLease

FAILED = 1
HEADINGS = ("DATABASE", "MODEL", "PK", "EDITED BY", "FOR", "IDLE", "ENDS IN")
# Characters of one column.
WIDEST = 40


class Edits(Subcommand):
    help = "List the objects that are being edited, and end an edit lock with --break."
    description: ClassVar[str] = (
        "A table in a terminal, JSON elsewhere. Who edited an object whose lock is ended keeps the typed text. Exit "
        "status: 1 if there is nothing to end, or you said no; 69 if a database does not answer."
    )

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("model", nargs="?", help="one model, such as shop.invoice")
        parser.add_argument("pk", nargs="?", help="one object of it")
        parser.add_argument("--database", metavar="ALIAS", help="one alias in DATABASES instead of all")
        parser.add_argument("--json", action="store_true", help="JSON also in a terminal")
        parser.add_argument("--break", action="store_true", dest="end", help="end the edit lock of MODEL PK")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--reason", default="", help="why, for the log and the signal")

    def handle(self, **options: Any) -> int:
        database, model, pk = options["database"], options["model"], options["pk"]
        if database is not None and database not in connections.settings:
            raise ValueError(f"There is no database {database!r} in DATABASES.")
        if options["end"] and pk is None:
            raise CommandError("Say which object: --break MODEL PK.", returncode=WRONG_ARGUMENTS)
        found = [row for row in list_edits(database, model=model) if pk is None or row.resource.pk == pk]
        if options["end"]:
            return self._end(found, options["yes"], options["reason"])
        as_table = self.stdout.isatty() and not options["json"]
        self.say(table(found) if as_table else json.dumps([as_data(row) for row in found], indent=2))
        return 0

    def _end(self, found: list[EditLease], yes: bool, reason: str) -> int:
        if not found:
            self.stderr.write("It is not being edited.")
            return FAILED
        self.say(table(found))
        if not yes and not self._confirm():
            self.stderr.write("Nothing was ended.")
            return FAILED
        why = f"manage.py distlock edits by {user()}" + (f": {reason}" if reason else "")
        ended = [row for row in found if break_edit(row.resource, reason=why) is not None]
        for row in ended:
            self.say(f"Ended: {_what(row)}, edited by {_who(row)}.")
        if len(ended) < len(found):
            self.stderr.write("It was given back or has changed hands meanwhile.")
        return 0 if ended else FAILED

    @staticmethod
    def _confirm() -> bool:
        if not sys.stdin.isatty():
            text = "Standard input is not a terminal, so the question cannot be asked: add --yes."
            raise CommandError(text, returncode=WRONG_ARGUMENTS)
        try:
            return input("End it? [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False


def as_data(row: EditLease) -> dict[str, Any]:
    """One entry of ``--json``. Programs rely on its keys: see docs/editing/commands.md."""
    return {
        "database": row.resource.database,
        "model": row.resource.model,
        "pk": row.resource.pk,
        "edited_by": row.owner and row.owner.label,
        "principal": row.owner and row.owner.principal,
        "since": row.since.isoformat(),
        "idle": round(row.idle, 3),
        "expires_in": round(row.expires_in, 3),
        "fence": row.fence,
    }


def table(rows: Sequence[EditLease]) -> str:
    """The rows as a table."""
    if not rows:
        return "Nothing is being edited."
    lines = [HEADINGS, *(_cells_of(row) for row in rows)]
    widths = [min(WIDEST, max(map(cells, column))) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(fitted, line, widths)).rstrip() for line in lines)


def _cells_of(row: EditLease) -> tuple[str, ...]:
    resource = row.resource
    times = (f"{value:.0f}s" for value in (row.age, row.idle, row.expires_in))
    return (resource.database, resource.model, one_line(resource.pk), _who(row), *times)


def _what(row: EditLease) -> str:
    return one_line(f"{row.resource.model} {row.resource.pk}")


def _who(row: EditLease) -> str:
    return one_line(row.owner.label) if row.owner is not None else "-"
