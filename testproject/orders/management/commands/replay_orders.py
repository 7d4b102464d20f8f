from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from testproject.orders.models import Order, OrderRun
from testproject.orders.records import story, table
from testproject.orders.run import Plan, replay
from testproject.orders.ways import WAYS
from testproject.replay.commands import ReplayCommand, positive
from testproject.replay.crowd import CrowdError
from testproject.replay.server import ServerError


class Command(ReplayCommand):
    ways = WAYS
    model = Order
    help = (
        "Start a real server with 4 processes, send one order many times at one barrier through every way, as a form "
        "and as an API call, and print what came of it. Exit status 1 if a way with a key made other than one order, "
        "or if the fault without a key did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--clicks", type=positive, default=Plan.clicks, help="how often each order is sent")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        plan = Plan(ways=self.chosen(options["ways"]), clicks=options["clicks"])
        self.require_tables()
        try:
            result, log = replay(plan, tell=self.teller(quiet))
        except (ServerError, CrowdError) as error:
            raise CommandError(str(error)) from error
        text = "\n".join([table(result.ways), "", *story(result.ways)])
        self.publish(result, OrderRun, text, quiet=quiet, log=log)
