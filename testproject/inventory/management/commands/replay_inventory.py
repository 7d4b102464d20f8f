from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from django_distlock.manager.registry import registry
from testproject.inventory.models import InventoryRun, Item
from testproject.inventory.records import story, table
from testproject.inventory.run import Plan, replay
from testproject.inventory.ways import WAYS
from testproject.inventory.workers import WorkerError
from testproject.replay.commands import ReplayCommand


def leases(alias: str) -> str:
    """The alias; CommandError if it is unknown or its locks have no TTL or no fencing tokens."""
    try:
        backend = registry.entry(alias).backend
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if not (backend.supports_ttl and backend.supports_fencing):
        raise CommandError(f"The locks of {alias!r} have no TTL or no fencing tokens: name another alias with --using.")
    return alias


class Command(ReplayCommand):
    ways = WAYS
    model = Item
    help = (
        "Let many worker processes sell the last items in every way, one of them stopped beyond the end of its lease, "
        "and print what came of it. Exit status 1 if a way sold what it had not, against its promise, or a fault did "
        "not show."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--stock", type=int, default=Plan.stock, help="units there are")
        parser.add_argument("--workers", type=int, default=Plan.workers, help="processes that sell")
        parser.add_argument("--using", default=Plan.using, help=f"lock alias of the leases, default: {Plan.using}")

    def handle(self, *args: Any, **options: Any) -> None:
        quiet = options["json"]
        if options["stock"] < 1 or options["workers"] < 2:
            raise CommandError("It takes a stock of at least 1 and at least 2 workers.")
        numbers = {name: options[name] for name in ("stock", "workers")}
        plan = Plan(ways=self.chosen(options["ways"]), using=leases(options["using"]), **numbers)
        self.require_tables()
        try:
            result = replay(plan, tell=self.teller(quiet))
        except WorkerError as error:
            raise CommandError(str(error)) from error
        self.publish(result, InventoryRun, "\n".join([table(result.ways), "", *story(result.ways)]), quiet=quiet)
