"""``manage.py distlock <subcommand>``: the subcommands are in django_distlock/commands/."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, DjangoHelpFormatter

from django_distlock.operations.commands.base import subcommands

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    help = "Locks for operators and for programs that are not Django's."
    # who runs a program under a lock does not want to hear of templates and admin classes
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")
        common = {action.dest for action in parser._actions}
        for name, command in subcommands():
            parent = command.parent()
            for action in parent._actions:
                if action.dest in common:  # what stands before the subcommand counts if it is not said again
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
        command = dict(subcommands())[options.pop("subcommand")]
        status = command(self.stdout, self.stderr).run(**options)
        if status:
            sys.exit(status)
