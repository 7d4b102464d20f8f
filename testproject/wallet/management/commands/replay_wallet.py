from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from testproject.replay.commands import ReplayCommand, positive
from testproject.replay.crowd import CrowdError
from testproject.replay.server import ServerError
from testproject.wallet.models import Account, ReplayRun
from testproject.wallet.records import table
from testproject.wallet.run import Plan, replay
from testproject.wallet.ways import WAYS


class Command(ReplayCommand):
    ways = WAYS
    model = Account
    help = (
        "Start a real server with 4 processes, send pairs of withdrawals and random transfers through every way, and "
        "print what came of it. Exit status 1 if a locked way made or lost money or failed, or if the race without a "
        "lock did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--pairs", type=positive, default=Plan.pairs, help="pairs of withdrawals per way")
        parser.add_argument("--transfers", type=positive, default=Plan.transfers, help="transfers per way")
        parser.add_argument("--rounds", type=positive, default=Plan.rounds, help="tries to make the race show itself")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        numbers = {name: options[name] for name in ("pairs", "transfers", "rounds")}
        plan = Plan(ways=self.chosen(options["ways"]), **numbers)
        self.require_tables()
        try:
            result, log = replay(plan, tell=self.teller(quiet))
        except (ServerError, CrowdError) as error:
            raise CommandError(str(error)) from error
        self.publish(result, ReplayRun, table(result), quiet=quiet, log=log)
