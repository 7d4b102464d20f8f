"""What a subcommand is, and how all of them are found."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_distlock import BackendUnavailable, UnsupportedOperation
from django_distlock.oneline import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.core.management.base import CommandParser, OutputWrapper

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
    def parents() -> Sequence[CommandParser]:
        """Parsers whose arguments this one takes too."""
        return ()

    @staticmethod  # noqa: B027 - some need none
    def add_arguments(parser: CommandParser) -> None:
        """Its own arguments, beside those of every Django command."""

    @abstractmethod
    def handle(self, **options: Any) -> int:
        """Do it; the exit status."""

    def run(self, **options: Any) -> int:
        """:meth:`handle`, with what cannot work as CommandError."""
        try:
            return self.handle(**options)
        except BackendUnavailable as error:
            cause = str(error.__cause__ or "").strip().splitlines()
            text = f"{error} ({cause[0]})" if cause else str(error)
            raise CommandError(one_line(text), returncode=EX_UNAVAILABLE) from error
        except (UnsupportedOperation, ImproperlyConfigured, ValueError) as error:
            raise CommandError(one_line(str(error))) from error


def seconds_or_none(text: str) -> float | None:
    """For argparse, which names the argument."""
    return None if text == "none" else float(text)


def subcommands() -> Iterator[tuple[str, type[Subcommand]]]:
    """Name and class of each, by name."""
    package = importlib.import_module(__package__)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        command = getattr(importlib.import_module(f"{__package__}.{module.name}"), "Command", None)
        if command is not None:
            yield module.name, command
