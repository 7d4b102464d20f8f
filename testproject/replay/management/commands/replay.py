from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from django_distlock import DistlockError
from testproject.replay import ReplayError
from testproject.replay.commands import command_line
from testproject.replay.models import Run
from testproject.replay.scene import replay, scenes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from testproject.replay.scene import Option


class Command(BaseCommand):
    help = (
        "Act out a scene with real processes in every way, and print what came of it. Exit status 1 if a way did not "
        "do what it promises, or if the fault that the others prevent did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        known = parser.add_subparsers(dest="scene", metavar="SCENE", required=True)
        for scene in scenes().values():
            one = known.add_parser(scene.name, help=scene.help, description=scene.help)
            one.add_argument("--ways", default=",".join(way.slug for way in scene.ways), help="default: %(default)s")
            one.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
            for option in scene.options:
                text = f"{option.help}; default: %(default)s"
                one.add_argument(f"--{option.name}", type=kind(option), default=option.default, help=text)

    def handle(self, *args: Any, **given: Any) -> None:
        quiet, scene = given["json"], scenes()[given["scene"]]
        ways = chosen(scene.ways, given["ways"])
        if Run._meta.db_table not in connection.introspection.table_names():
            raise CommandError(
                f"The {connection.display_name} database has no tables yet: run `{command_line('migrate')}`."
            )
        try:  # nothing but the figures goes to the standard output of --json
            result, log = replay(scene, ways, given, tell=(self.stderr if quiet else self.stdout).write)
        except (ReplayError, DistlockError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        Run.objects.create(scene=scene.name, engine=result["engine"], result=result)
        self.stdout.write(json.dumps(result) if quiet else f"\n{scene.text(result)}")
        if result["problems"]:
            raise CommandError("\n".join([*result["problems"], log]).strip())


def kind(option: Option) -> Callable[[str], Any]:
    """For argparse, which names the argument."""

    def value(text: str) -> Any:
        found = type(option.default)(text)
        if not isinstance(found, str) and found < option.least:
            raise ArgumentTypeError(f"must be at least {option.least}")
        return found

    return value


def chosen(ways: Sequence[Any], slugs: str) -> list[Any]:
    """The ways with these slugs, in their own order; CommandError for an unknown slug."""
    wanted, known = set(slugs.split(",")), [way.slug for way in ways]
    if unknown := wanted.difference(known):
        raise CommandError(f"unknown way {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return [way for way in ways if way.slug in wanted]
