"""``manage.py distlock <subcommand>``: the subcommands are commands of their own, in ``operations/commands/``."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

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

    SUBCOMMANDS["edits"] = Edits
if find_spec("django_distlock.browser") is not None:
    from django_distlock.browser.listing import BrowserLocks

    SUBCOMMANDS["browser"] = BrowserLocks

# The options of every Django command. The subcommand has its own.
DJANGOS = {action.dest for action in BaseCommand().create_parser("", "")._actions} | {"stdout", "stderr"}


class Command(BaseCommand):
    help = "Locks for operators and for programs that are not Django's."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawTextHelpFormatter
        all_ = "\n".join(f"{name:8} {kind.help}" for name, kind in sorted(SUBCOMMANDS.items()))
        names = "{" + ",".join(sorted(SUBCOMMANDS)) + "}"
        parser.add_argument("subcommand", choices=SUBCOMMANDS, metavar=names, help=all_)
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see `distlock <subcommand> --help`")

    def run_from_argv(self, argv: list[str]) -> None:
        """From a shell the subcommand itself parses what follows it, and ends the process."""
        if len(argv) > 2 and argv[2] in SUBCOMMANDS:
            SUBCOMMANDS[argv[2]]().run_from_argv([argv[0], f"{argv[1]} {argv[2]}", *argv[3:]])
        else:
            super().run_from_argv(argv)

    @property
    def stealth_options(self) -> tuple[str, ...]:  # type: ignore[override]  # asked for by call_command() alone
        """What call_command() accepts besides: the options of all subcommands, as in ``days=30``."""
        parsers = [kind().create_parser("", name) for name, kind in SUBCOMMANDS.items()]
        return tuple({action.dest for parser in parsers for action in parser._actions} - DJANGOS)

    def handle(self, *args: Any, subcommand: str, arguments: list[str], **options: Any) -> None:
        command = SUBCOMMANDS[subcommand](no_color=options["no_color"])
        given = {name: value for name, value in options.items() if name not in DJANGOS}
        if options["verbosity"] != 1:
            given["verbosity"] = options["verbosity"]
        call_command(command, *arguments, **given, stdout=self.stdout, stderr=self.stderr)
