"""``manage.py distlock browser``: who holds which browser lock, and ending a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandError

from django_distlock.concurrency.text import one_line
from django_distlock.operations.commands.base import WRONG_ARGUMENTS
from django_distlock.operations.commands.leases import Leases

from .listing import break_browser_lock, list_browser_locks
from .records import BrowserLease

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class BrowserLocks(Leases[BrowserLease]):
    help = "List the browser locks that are held, and end one with --break."
    description: ClassVar[str] = (
        "A table in a terminal, JSON elsewhere. The page whose lock is ended learns of it at its next renewal. Exit "
        "status: 1 if there is nothing to end, or you said no; 69 if the database does not answer."
    )
    name = "browser"
    nothing = "No browser lock is held."
    none_to_end = "It is not held."
    headings = ("NAME", "HELD BY", "PRINCIPAL", "FOR", "ENDS IN")

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("lock", nargs="?", metavar="name", help="one lock, such as cart:5")
        BrowserLocks.add_common(parser, "end the lease of this lock")

    def rows(self, **options: Any) -> list[BrowserLease]:
        if options["end"] and options["lock"] is None:
            raise CommandError("Say which lock: --break NAME.", returncode=WRONG_ARGUMENTS)
        return list_browser_locks(options["lock"])

    def end(self, row: BrowserLease, why: str) -> bool:
        return break_browser_lock(row, reason=why)

    def as_data(self, row: BrowserLease) -> dict[str, Any]:
        """Programs rely on these keys."""
        return {
            "name": row.name,
            "held_by": row.label,
            "principal": row.principal,
            "since": row.since.isoformat(),
            "expires_in": round(row.expires_in, 3),
            "fence": row.fence,
        }

    @classmethod
    def cells_of(cls, row: BrowserLease) -> tuple[str, ...]:
        times = (f"{value:.0f}s" for value in (row.age, row.expires_in))
        return (one_line(row.name), one_line(row.label), one_line(row.principal), *times)

    def described(self, row: BrowserLease) -> str:
        return f"{one_line(row.name)}, held by {one_line(row.label)}"
