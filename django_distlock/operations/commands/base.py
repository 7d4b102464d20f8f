"""What a subcommand is, and how all of them are found."""

from __future__ import annotations

import argparse
import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.concurrency.text import one_line
from django_distlock.operations.lookup import aliases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.management.base import CommandParser, OutputWrapper

# What argparse ends with, and all that is wrong with arguments.
WRONG_ARGUMENTS = 2
# sysexits.h
EX_UNAVAILABLE = 69
EX_TEMPFAIL = 75


class Subcommand(ABC):
    """One subcommand. ``help`` is a sentence for the list of all, ``description`` what its own help adds to it."""

    help: ClassVar[str]
    description: ClassVar[str] = ""

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self.stdout, self.stderr = stdout, stderr

    @staticmethod
    def parent() -> CommandParser:
        """A parser whose arguments this one takes, too: with those of every Django command."""
        return _Plain().create_parser("manage.py", "distlock")

    @staticmethod  # noqa: B027 - some need none
    def add_arguments(parser: CommandParser) -> None:
        """Its own arguments, beside those of every Django command."""

    @abstractmethod
    def handle(self, **options: Any) -> int:
        """Do it; the exit status."""

    def run(self, **options: Any) -> int:
        """:meth:`handle`, with what cannot work as CommandError."""
        try:
            self._know(options.get("using"))
            return self.handle(**options)
        except BackendUnavailable as error:
            cause = str(error.__cause__ or "").strip().splitlines()
            text = f"{error} ({cause[0]})" if cause else str(error)
            raise CommandError(one_line(text), returncode=EX_UNAVAILABLE) from error
        except ValueError as error:
            raise CommandError(one_line(str(error)), returncode=WRONG_ARGUMENTS) from error
        except (UnsupportedOperation, ImproperlyConfigured) as error:
            raise CommandError(one_line(str(error))) from error

    @staticmethod
    def _know(using: str | None) -> None:
        """Whatever the subcommand makes of it: an alias that is not there is a wrong argument."""
        if using is not None and using not in aliases():
            known = ", ".join(map(repr, aliases()))
            raise ValueError(f"There is no lock backend {using!r} in DISTLOCK. Known: {known}.")


class _Plain(BaseCommand):
    """For the arguments that every Django command has."""

    requires_system_checks = ()


def number(unit: str = "seconds", *, positive: bool = False, none: bool = False) -> Callable[[str], float | None]:
    """A ``type`` for argparse, which names the argument: a finite number from 0 on, or above 0, or "none"."""

    def parsed(text: str) -> float | None:
        if none and text == "none":
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if (value > 0 if positive else value >= 0) and value < math.inf:
            return value
        wanted = f"number of {unit} {'above 0' if positive else 'from 0 on'}" + (', nor "none"' if none else "")
        raise argparse.ArgumentTypeError(f"{text!r} is no {wanted}.")

    return parsed


def subcommands() -> Iterator[tuple[str, type[Subcommand]]]:
    """Name and class of each, by name."""
    package = importlib.import_module(__package__)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        command = getattr(importlib.import_module(f"{__package__}.{module.name}"), "Command", None)
        if command is not None:
            yield module.name, command
