"""``manage.py distlock prune``: delete old rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line
from django_distlock.operations.pruning import Failure, prune

from .base import Subcommand, number

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

DAYS = 30.0


class Prune(Subcommand):
    help = "Delete old leases, names and records."
    description = (
        "In small batches, which block no lock. Once a day is enough. Exit status: 69 if a server does not answer; the "
        "others are pruned all the same."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        parser.add_argument("--days", type=number("days"), default=DAYS, help=f"delete what is older ({DAYS:g})")

    def run(self, **options: Any) -> int:
        failed: list[Failure] = []
        deleted = prune(options["using"], days=options["days"], failed=failed)
        for what, count in deleted.items():
            self.stdout.write(f"{what}: {count} deleted")
        for error in failed[1:]:
            self.stderr.write(one_line(str(error)))
        if failed:
            raise failed[0]
        if not deleted:
            self.stdout.write("Nothing is kept there.")
        return 0
