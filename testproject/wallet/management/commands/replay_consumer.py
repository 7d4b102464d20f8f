from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from testproject.replay.commands import ReplayCommand, positive
from testproject.wallet.deliveries import Plan, replay, story, table
from testproject.wallet.members import MemberError
from testproject.wallet.messages import DELIVERIES
from testproject.wallet.models import ConsumerRun, Receipt
from testproject.wallet.streams import redis_url


class Command(ReplayCommand):
    ways = DELIVERIES
    model = Receipt
    help = (
        "Send transfers through a Redis stream, each twice, to several consumer processes, one of which is killed "
        "between commit and acknowledgement, and print how often each transfer acted. Exit status 1 if one did not act "
        "once where that is promised, or if the fault did not show. Needs Redis (`make services`) and FastStream."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--messages", type=positive, default=Plan.messages, help="transfers per way")
        parser.add_argument("--consumers", type=positive, default=Plan.consumers, help="processes, without the killed")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        plan = Plan(ways=self.chosen(options["ways"]), messages=options["messages"], consumers=options["consumers"])
        self.require_tables()
        try:
            result = replay(plan, redis_url(), tell=self.teller(quiet))
        except MemberError as error:
            raise CommandError(str(error)) from error
        self.publish(result, ConsumerRun, "\n".join([table(result.ways), "", *story(result.ways)]), quiet=quiet)
