"""Base class of the subcommands of ``manage.py distlock``."""

from __future__ import annotations

import argparse
import getpass
import math
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.concurrency.text import one_line
from django_distlock.manager.registry import registry
from django_distlock.operations.lookup import with_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.core.management.base import CommandParser

# The answer is no.
FAILED = 1
# The exit status of argparse, here of all wrong arguments.
WRONG_ARGUMENTS = 2
# sysexits.h
EX_UNAVAILABLE = 69
EX_TEMPFAIL = 75


class Subcommand(BaseCommand):
    """A command of its own. ``help`` is one sentence for the list of all; ``description`` follows it in ``--help``."""

    description: ClassVar[str] = ""
    # checks of templates and admin classes do not belong into the output of a program
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.description = f"{self.help} {self.description}".strip()
        return parser

    def run(self, **options: Any) -> int:
        """Run the subcommand and return its exit status."""
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        """End with the status of :meth:`run`; errors become CommandError with an exit status."""
        try:
            if (using := options.get("using")) is not None and using not in registry.aliases():
                known = ", ".join(map(repr, registry.aliases()))
                raise ValueError(f"There is no lock backend {using!r} in DISTLOCK. Known: {known}.")
            status = self.run(**options)
        except BackendUnavailable as error:
            raise CommandError(one_line(with_cause(error)), returncode=EX_UNAVAILABLE) from error
        except ValueError as error:
            raise CommandError(one_line(str(error)), returncode=WRONG_ARGUMENTS) from error
        except (UnsupportedOperation, ImproperlyConfigured) as error:
            raise CommandError(one_line(str(error))) from error
        if status:
            sys.exit(status)

    def say(self, line: str) -> None:
        """Write a line, with escapes for what the encoding of the terminal does not have."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        self.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))


def number(unit: str = "seconds", *, positive: bool = False, none: bool = False) -> Callable[[str], float | None]:
    """A ``type`` for argparse: a finite number, at least 0 or above 0, or "none"."""

    def parsed(text: str) -> float | None:
        if none and text == "none":
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if (value > 0 if positive else value >= 0) and value < math.inf:
            return value
        wanted = f"a number of {unit}, {'above 0' if positive else 'at least 0'}" + (', nor "none"' if none else "")
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}.")

    return parsed


def confirmed(question: str) -> bool:
    """Ask the person at the terminal. CommandError if there is none."""
    if not sys.stdin.isatty():
        text = "Standard input is not a terminal, so the question cannot be asked: add --yes."
        raise CommandError(text, returncode=WRONG_ARGUMENTS)
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def user() -> str:
    """The name of the user of the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return f"uid {os.getuid()}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table; each column is as wide as its longest text."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, sizes)).rstrip() for row in rows]
