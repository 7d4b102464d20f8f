"""``manage.py distlock edits``: who edits what, and ending a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError
from django.db import connections

from django_distlock.concurrency.text import one_line
from django_distlock.operations.commands.base import WRONG_ARGUMENTS
from django_distlock.operations.commands.leases import Leases

from .listing import break_edit, list_edits
from .records import EditLease

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Edits(Leases[EditLease]):
    help = "List the objects that are being edited, and end an edit lock with --break."
    description: ClassVar[str] = (
        "A table in a terminal, JSON elsewhere. Who edited an object whose lock is ended keeps the typed text. Exit "
        "status: 1 if there is nothing to end, or you said no; 69 if a database does not answer."
    )
    name = "edits"
    nothing = "Nothing is being edited."
    none_to_end = "It is not being edited."
    headings = ("DATABASE", "MODEL", "PK", "EDITED BY", "FOR", "IDLE", "ENDS IN")

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("model", nargs="?", help="one model, such as shop.invoice")
        parser.add_argument("pk", nargs="?", help="one object of it")
        parser.add_argument("--database", metavar="ALIAS", help="one alias in DATABASES instead of all")
        Edits.add_common(parser, "end the edit lock of MODEL PK")

    def rows(self, **options: Any) -> list[EditLease]:
        database, model, pk = options["database"], options["model"], options["pk"]
        if database is not None and database not in connections.settings:
            raise ValueError(f"There is no database {database!r} in DATABASES.")
        if options["end"] and pk is None:
            raise CommandError("Say which object: --break MODEL PK.", returncode=WRONG_ARGUMENTS)
        return [row for row in list_edits(database, model=model) if pk is None or row.resource.pk == pk]

    def end(self, row: EditLease, why: str) -> bool:
        return break_edit(row.resource, reason=why) is not None

    def as_data(self, row: EditLease) -> dict[str, Any]:
        """See docs/editing/."""
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

    @classmethod
    def cells_of(cls, row: EditLease) -> tuple[str, ...]:
        resource = row.resource
        times = (f"{value:.0f}s" for value in (row.age, row.idle, row.expires_in))
        return (resource.database, resource.model, one_line(resource.pk), _who(row), *times)

    def described(self, row: EditLease) -> str:
        return f"{one_line(f'{row.resource.model} {row.resource.pk}')}, edited by {_who(row)}"


def _who(row: EditLease) -> str:
    return one_line(row.owner.label) if row.owner is not None else "-"
