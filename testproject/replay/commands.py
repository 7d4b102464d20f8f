"""What the commands that replay a scenario have in common."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.models import Model
    from django.http import HttpRequest

MANAGE = Path(__file__).resolve().parents[1] / "manage.py"


class ReplayCommand(BaseCommand):
    """`ways` are the scenario's own, `model` is one whose table has to be there."""

    ways: Sequence[Any]
    model: type[Model]

    def add_arguments(self, parser: CommandParser) -> None:
        slugs = ",".join(way.slug for way in self.ways)
        parser.add_argument("--ways", default=slugs, help="comma-separated, default: all")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")

    def chosen(self, slugs: str) -> list[Any]:
        """The ways with these slugs, in their own order; CommandError for an unknown slug."""
        wanted = set(slugs.split(","))
        known = [way.slug for way in self.ways]
        if unknown := wanted.difference(known):
            raise CommandError(f"unknown way {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return [way for way in self.ways if way.slug in wanted]

    def require_tables(self) -> None:
        if self.model._meta.db_table not in connection.introspection.table_names():
            raise CommandError(
                f"The {connection.display_name} database has no tables yet: run `{command_line('migrate')}`."
            )

    def teller(self, quiet: bool) -> Callable[[str], Any]:
        """Where the progress is told: nothing but the figures goes to the standard output of --json."""
        return self.stderr.write if quiet else self.stdout.write

    def publish(self, result: Any, runs: type[Model], text: str, *, quiet: bool, log: str = "", **fields: Any) -> None:
        """Keep the result as a row of `runs` for the scenario's page and print it, as `text` or as JSON; CommandError
        with its problems, and the server's `log`, if it did not go as promised."""
        runs._default_manager.create(engine=result.engine, result=result.as_json(), **fields)
        self.stdout.write(json.dumps(result.as_json()) if quiet else f"\n{text}")
        if result.problems:
            raise CommandError("\n".join([*result.problems, log]).strip())


def positive(text: str) -> int:
    """For argparse, which names the argument."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def command_line(command: str) -> str:
    """What to type at the top of the checkout to run this command as this process runs: with the interpreter of its
    virtual environment, and on its database."""
    top = MANAGE.parents[1]
    python = Path(sys.executable)
    shown = python.relative_to(top) if python.is_relative_to(top) else python
    database = [f"DB={shlex.quote(engine)}"] if (engine := os.environ.get("DB", "sqlite")) != "sqlite" else []
    return " ".join([*database, shlex.quote(str(shown)), str(MANAGE.relative_to(top)), command])


def how_to_run(request: HttpRequest) -> dict[str, str]:
    """For the templates, which say how to run a replay: ``{{ manage }} NAME``."""
    return {"manage": command_line("").rstrip()}
