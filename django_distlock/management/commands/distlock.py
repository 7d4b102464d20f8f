"""``manage.py distlock <subcommand>``: the subcommands are in ``operations/commands/``."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, DjangoHelpFormatter

from django_distlock.operations.commands.breaking import Break
from django_distlock.operations.commands.doctor import Doctor
from django_distlock.operations.commands.listing import List
from django_distlock.operations.commands.migrate import Migrate
from django_distlock.operations.commands.prune import Prune
from django_distlock.operations.commands.run import Run

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_distlock.operations.commands.base import Subcommand

SUBCOMMANDS: dict[str, type[Subcommand]] = {
    "break": Break,
    "doctor": Doctor,
    "list": List,
    "migrate": Migrate,
    "prune": Prune,
    "run": Run,
}

if find_spec("django_distlock.editing") is not None:  # a folder that may be deleted
    from django_distlock.editing.listing import Edits

    SUBCOMMANDS = {**SUBCOMMANDS, "edits": Edits}
if find_spec("django_distlock.browser") is not None:
    from django_distlock.browser.listing import BrowserLocks

    SUBCOMMANDS = {**SUBCOMMANDS, "browser": BrowserLocks}


class Command(BaseCommand):
    help = "Locks for operators and for programs that are not Django's."
    # checks of templates and admin classes do not belong into the output of a program
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")
        common = {action.dest for action in parser._actions}
        for name, command in sorted(SUBCOMMANDS.items()):
            parent = command.parent()
            for action in parent._actions:
                if action.dest in common:  # a value before the subcommand counts unless it is given again
                    action.default = argparse.SUPPRESS
            parser = parsers.add_parser(
                name,
                help=command.help,
                description=f"{command.help} {command.description}".strip(),
                formatter_class=DjangoHelpFormatter,
                parents=[parent],
                conflict_handler="resolve",  # each has a --help
            )
            command.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        command = SUBCOMMANDS[options.pop("subcommand")]
        status = command(self.stdout, self.stderr).run(**options)
        if status:
            sys.exit(status)
