from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from django_distlock import DistlockError
from testproject.replay import ReplayError, command_line
from testproject.replay.models import Replay
from testproject.replay.scene import replay, scenes


class Command(BaseCommand):
    help = (
        "Act out a scene with real processes in every way, and print what came of it. Exit status 1 if a way did not "
        "do what it promises, or if the fault that the others prevent did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        known = parser.add_subparsers(dest="scene", metavar="SCENE", required=True)
        for scene in scenes().values():
            one = known.add_parser(scene.name, help=scene.help, description=scene.help)
            one.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
            for name, default, text in scene.options:
                help = f"{text}; default: %(default)s"
                one.add_argument(f"--{name}", type=type(default), default=default, help=help)

    def handle(self, *args: Any, **given: Any) -> None:
        quiet, scene = given["json"], scenes()[given["scene"]]
        if Replay._meta.db_table not in connection.introspection.table_names():
            cure = command_line("migrate --run-syncdb")
            raise CommandError(f"The {connection.display_name} database has no tables yet: run `{cure}`.")
        try:  # nothing but the figures goes to the standard output of --json
            options = {option.name: given[option.name] for option in scene.options}
            result = replay(scene, options, tell=(self.stderr if quiet else self.stdout).write)
        except (ReplayError, DistlockError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        Replay.objects.create(scene=scene.name, result=result)
        self.stdout.write(json.dumps(result) if quiet else f"\n{scene.text(result)}")
        if result["problems"]:
            raise CommandError("\n".join(result["problems"]))
