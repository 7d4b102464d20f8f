"""``manage.py distlock list``: what is held now, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock import held_locks

from .base import EX_UNAVAILABLE, Subcommand, number
from .listing import as_data, table
from .text import encodable

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

WATCH = 2.0
HOME_AND_CLEAR = "\x1b[H\x1b[2J"


class Command(Subcommand):
    help = "List the locks that are held, by anybody."
    description: ClassVar[str] = (
        "A table in a terminal, JSON elsewhere. A backend that does not answer is a line of its own. Exit status: 0; "
        "69 if --using names a backend that does not answer."
    )

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="JSON also in a terminal")
        form.add_argument("--table", action="store_true", help="a table also in a pipe")
        parser.add_argument(
            "--watch",
            nargs="?",
            type=number(positive=True),
            const=WATCH,
            metavar="SECONDS",
            help=f"again every so many seconds ({WATCH:g}), until Ctrl-C; as JSON one line each time",
        )

    def handle(self, **options: Any) -> int:
        try:
            return self._show(**options)
        except KeyboardInterrupt:
            if options["watch"] is None:
                raise
            return 0
        except BrokenPipeError:  # whoever read has seen enough; the interpreter would complain once more at its end
            if vars(self.stdout)["_out"] is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    def _show(self, *, using: str | None, watch: float | None, **options: Any) -> int:
        as_table = options["table"] or (self.stdout.isatty() and not options["json"])
        while True:
            reports = held_locks(using)
            now = datetime.now(UTC)
            if as_table:
                text = encodable(table(reports, now), getattr(self.stdout, "encoding", None))
            else:
                text = json.dumps(as_data(reports, now), indent=2 if watch is None else None)
            if as_table and watch is not None and self.stdout.isatty():
                text = HOME_AND_CLEAR + text
            self.stdout.write(text)
            self.stdout.flush()
            if watch is None:
                return EX_UNAVAILABLE if using is not None and reports[0].error else 0
            time.sleep(watch)
