from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from testproject.registration.models import Account, ReplayRun
from testproject.registration.ways import WAYS
from testproject.replay.commands import ReplayCommand, positive
from testproject.replay.crowd import CrowdError
from testproject.replay.run import Plan, replay
from testproject.replay.server import ServerError
from testproject.replay.verdict import story, table


class Command(ReplayCommand):
    ways = WAYS
    model = Account
    help = (
        "Start a real server with 4 processes, send identical and distinct sign-ups at one barrier through every way, "
        "and print what came of it. Exit status 1 if a locked way made a duplicate or failed, or the race without a "
        "lock did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--identical", type=positive, default=Plan.identical, help="identical sign-ups per way")
        parser.add_argument("--distinct", type=int, default=Plan.distinct, help="distinct sign-ups per way, 0: none")
        parser.add_argument("--rounds", type=positive, default=Plan.rounds, help="tries to make the race show itself")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        plan = Plan(
            ways=self.chosen(options["ways"]),
            identical=options["identical"],
            distinct=max(0, options["distinct"]),
            rounds=options["rounds"],
        )
        self.require_tables()
        try:
            result, log = replay(plan, tell=self.teller(quiet))
        except (ServerError, CrowdError) as error:
            raise CommandError(str(error)) from error
        self.publish(
            result,
            ReplayRun,
            "\n".join([table(result), "", *story(result)]),
            quiet=quiet,
            log=log,
            atomic_requests=result.atomic_requests,
        )
