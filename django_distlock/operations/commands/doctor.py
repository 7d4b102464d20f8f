"""``manage.py distlock doctor``: checks that need a connection."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line
from django_distlock.operations.doctor import diagnose

from .base import FAILED, Subcommand

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

SITE = "site key"


class Doctor(Subcommand):
    help = "Check the servers of the locks for errors and risks."
    description = (
        "Acquires and releases a lock on each alias, and asks its server for versions, limits and settings. "
        "Exit status: 1 if there is an error, else 0."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        parser.add_argument("--json", action="store_true", help="write JSON")

    def run(self, **options: Any) -> int:
        found = diagnose(options["using"])
        if options["json"]:
            self.stdout.write(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
        else:
            for finding in found:
                self.say(one_line(f"{finding.alias or SITE}: {finding.level}: {finding.text}"))
                if finding.hint:
                    self.say(one_line(f"    {finding.hint}"))
            errors, warnings = (sum(each.level == level for each in found) for level in ("error", "warning"))
            self.stdout.write(f"{errors} errors, {warnings} warnings.")
        return FAILED if any(finding.level == "error" for finding in found) else 0
