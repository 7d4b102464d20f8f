from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from testproject.registration.models import Account, ReplayRun
from testproject.registration.ways import WAYS
from testproject.replay.crowd import CrowdError
from testproject.replay.run import Plan, replay, ways_named
from testproject.replay.server import ServerError
from testproject.replay.verdict import story, table


class Command(BaseCommand):
    help = (
        "Start a real server with 4 processes, send identical and distinct sign-ups at one barrier through every way, "
        "and print what came of it. Exit status 1 if a locked way made a duplicate or failed, or the race without a "
        "lock did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--ways", default=",".join(way.slug for way in WAYS), help="comma-separated, default: all")
        parser.add_argument("--identical", type=positive, default=Plan.identical, help="identical sign-ups per way")
        parser.add_argument("--distinct", type=int, default=Plan.distinct, help="distinct sign-ups per way, 0: none")
        parser.add_argument("--rounds", type=positive, default=Plan.rounds, help="tries to make the race show itself")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        try:
            plan = Plan(
                ways=ways_named(options["ways"].split(",")),
                identical=options["identical"],
                distinct=max(0, options["distinct"]),
                rounds=options["rounds"],
            )
            require_tables()
            result, log = replay(plan, tell=self.stderr.write if quiet else self.stdout.write)
        except (ValueError, ServerError, CrowdError) as error:
            raise CommandError(str(error)) from error
        ReplayRun.objects.create(engine=result.engine, atomic_requests=result.atomic_requests, result=result.as_json())
        if quiet:
            self.stdout.write(json.dumps(result.as_json()))
        else:
            self.stdout.write(f"\n{table(result)}\n")
            self.stdout.write("\n".join(story(result)))
        if result.problems:
            raise CommandError("\n".join([*result.problems, log]).strip())


def require_tables() -> None:
    if Account._meta.db_table not in connection.introspection.table_names():
        raise CommandError(
            f"The {connection.display_name} database has no tables yet: run `python testproject/manage.py migrate`."
        )


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
