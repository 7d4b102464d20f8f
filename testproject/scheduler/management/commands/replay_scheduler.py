from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from django_distlock import DistlockError
from testproject.replay.commands import ReplayCommand
from testproject.scheduler.models import Schedule, SchedulerRun
from testproject.scheduler.records import story, table
from testproject.scheduler.run import Plan, replay
from testproject.scheduler.ways import WAYS


class Command(ReplayCommand):
    ways = WAYS
    model = Schedule
    help = (
        "Run three copies of a scheduler in every way; kill the leader, put the next one to sleep beyond the end of "
        "its lease, and print what came of it. Exit status 1 if a slot was run twice against a promise, nobody led in "
        "time, or a fault did not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--using", default=Plan.using, help="the lock alias (default: %(default)s)")
        parser.add_argument("--copies", type=int, default=Plan.copies, help="processes (default: %(default)s)")
        parser.add_argument("--ttl", type=float, default=Plan.ttl, help="of the leader's lease (default: %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        if options["using"] not in settings.DISTLOCK:
            raise CommandError(f"unknown alias {options['using']}; choose from {', '.join(settings.DISTLOCK)}")
        if options["copies"] < 3 or options["ttl"] <= 0:
            raise CommandError(
                "It takes 3 copies or more, of which one is killed and one sleeps, and a TTL above zero."
            )
        plan = Plan(
            ways=self.chosen(options["ways"]), using=options["using"], copies=options["copies"], ttl=options["ttl"]
        )
        self.require_tables()
        try:
            result = replay(plan, tell=self.teller(quiet))
        except DistlockError as error:
            raise CommandError(str(error)) from error
        self.publish(result, SchedulerRun, "\n".join([table(result.ways), "", *story(result.ways)]), quiet=quiet)
