"""``manage.py distlock doctor``: checks that need a connection."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.concurrency.text import one_line
from django_distlock.operations.doctor import diagnose

from .base import Subcommand
from .text import encodable

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_distlock.records import Finding

SICK = 1
SITE = "site key"


class Command(Subcommand):
    help = "Look for what is wrong, or may go wrong, on the servers of the locks."
    description: ClassVar[str] = (
        "Takes and gives back a lock on each alias, and asks its server for versions, limits and settings. "
        "Exit status: 1 if there is an error, 0 with warnings."
    )

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, **options: Any) -> int:
        found = diagnose(options["using"])
        if options["json"]:
            self.stdout.write(_document(found))
        else:
            for finding in found:
                self._say(finding)
            errors, warnings = (sum(each.level == level for each in found) for level in ("error", "warning"))
            self.stdout.write(f"{errors} errors, {warnings} warnings.")
        return SICK if any(finding.level == "error" for finding in found) else 0

    def _say(self, finding: Finding) -> None:
        lines = [f"{finding.alias or SITE}: {finding.level}: {finding.text}"]
        if finding.hint:
            lines.append(f"    {finding.hint}")
        for line in lines:
            self.stdout.write(encodable(one_line(line), getattr(self.stdout, "encoding", None)))


def _document(found: list[Finding]) -> str:
    return json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2)
