from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from testproject.replay.crowd import CrowdError
from testproject.replay.server import ServerError
from testproject.wallet.models import Account, ReplayRun
from testproject.wallet.records import table
from testproject.wallet.run import Plan, replay, ways_named
from testproject.wallet.ways import WAYS


class Command(BaseCommand):
    help = (
        "Start a real server with 4 processes, send pairs of withdrawals and random transfers through every way, and "
        "print what came of it. Exit status 1 if a locked way made or lost money or failed, or if the race without a "
        "lock did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--ways", default=",".join(way.slug for way in WAYS), help="comma-separated, default: all")
        parser.add_argument("--pairs", type=positive, default=Plan.pairs, help="pairs of withdrawals per way")
        parser.add_argument("--transfers", type=positive, default=Plan.transfers, help="transfers per way")
        parser.add_argument("--rounds", type=positive, default=Plan.rounds, help="tries to make the race show itself")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        numbers = {name: options[name] for name in ("pairs", "transfers", "rounds")}
        try:
            plan = Plan(ways=ways_named(options["ways"].split(",")), **numbers)
            if Account._meta.db_table not in connection.introspection.table_names():
                raise ValueError("The database has no tables yet: run `python testproject/manage.py migrate`.")
            result, log = replay(plan, tell=self.stderr.write if quiet else self.stdout.write)
        except (ValueError, ServerError, CrowdError) as error:
            raise CommandError(str(error)) from error
        ReplayRun.objects.create(engine=result.engine, result=result.as_json())
        self.stdout.write(json.dumps(result.as_json()) if quiet else f"\n{table(result)}")
        if result.problems:
            raise CommandError("\n".join([*result.problems, log]).strip())


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
