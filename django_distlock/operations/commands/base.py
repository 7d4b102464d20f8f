"""Base class of the subcommands of ``manage.py distlock``."""

from __future__ import annotations

import argparse
import getpass
import math
import os
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.concurrency.text import one_line
from django_distlock.operations.lookup import aliases, with_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.core.management.base import CommandParser, OutputWrapper

# The answer is no.
FAILED = 1
# The exit status of argparse, here of all wrong arguments.
WRONG_ARGUMENTS = 2
# sysexits.h
EX_UNAVAILABLE = 69
EX_TEMPFAIL = 75


class Subcommand(ABC):
    """One subcommand. ``help`` is one sentence for the list of all; ``description`` follows it in ``--help``."""

    help: ClassVar[str]
    description: ClassVar[str] = ""

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self.stdout, self.stderr = stdout, stderr

    @staticmethod
    def parent() -> CommandParser:
        """A parser with arguments that this subcommand takes as well: those of every Django command."""
        return _Plain().create_parser("manage.py", "distlock")

    @staticmethod  # noqa: B027 - some have none
    def add_arguments(parser: CommandParser) -> None:
        """Add the arguments of this subcommand."""

    @abstractmethod
    def handle(self, **options: Any) -> int:
        """Run the subcommand and return its exit status."""

    def run(self, **options: Any) -> int:
        """As :meth:`handle`; errors become CommandError with an exit status."""
        try:
            self._check_alias(options.get("using"))
            return self.handle(**options)
        except BackendUnavailable as error:
            raise CommandError(one_line(with_cause(error)), returncode=EX_UNAVAILABLE) from error
        except ValueError as error:
            raise CommandError(one_line(str(error)), returncode=WRONG_ARGUMENTS) from error
        except (UnsupportedOperation, ImproperlyConfigured) as error:
            raise CommandError(one_line(str(error))) from error

    def say(self, line: str) -> None:
        """Write a line; what the terminal cannot show is escaped."""
        self.stdout.write(encodable(line, getattr(self.stdout, "encoding", None)))

    @staticmethod
    def _check_alias(using: str | None) -> None:
        """ValueError for an alias that is not in DISTLOCK, which is a wrong argument for every subcommand."""
        if using is not None and using not in aliases():
            known = ", ".join(map(repr, aliases()))
            raise ValueError(f"There is no lock backend {using!r} in DISTLOCK. Known: {known}.")


class _Plain(BaseCommand):
    """Has the arguments of every Django command."""

    requires_system_checks = ()


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


def encodable(text: str, encoding: str | None) -> str:
    """``text`` with escapes for characters that the encoding (None: UTF-8) does not have."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
