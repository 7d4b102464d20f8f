from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from testproject.inventory.models import InventoryRun, Item
from testproject.inventory.records import story, table
from testproject.inventory.run import Plan, replay
from testproject.inventory.ways import WAYS, ways_named
from testproject.inventory.workers import WorkerError


class Command(BaseCommand):
    help = (
        "Let many worker processes sell the last items in every way, one of them stopped beyond the end of its lease, "
        "and print what came of it. Exit status 1 if a way sold what it had not, against its promise, or a fault did "
        "not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--ways", default=",".join(way.slug for way in WAYS), help="comma-separated, default: all")
        parser.add_argument("--stock", type=int, default=Plan.stock, help="units there are")
        parser.add_argument("--workers", type=int, default=Plan.workers, help="processes that sell")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        if options["stock"] < 1 or options["workers"] < 2:
            raise CommandError("It takes a stock of at least 1 and at least 2 workers.")
        if Item._meta.db_table not in connection.introspection.table_names():
            raise CommandError("The database has no tables yet: run `python testproject/manage.py migrate`.")
        try:
            ways = ways_named(options["ways"].split(","))
            plan = Plan(ways=ways, stock=options["stock"], workers=options["workers"])
            result = replay(plan, tell=self.stderr.write if quiet else self.stdout.write)
        except (ValueError, WorkerError) as error:
            raise CommandError(str(error)) from error
        InventoryRun.objects.create(engine=result.engine, result=result.as_json())
        if quiet:
            self.stdout.write(json.dumps(result.as_json()))
        else:
            self.stdout.write(f"\n{table(result.ways)}\n")
            self.stdout.write("\n".join(story(result.ways)))
        if result.problems:
            raise CommandError("\n".join(result.problems))
