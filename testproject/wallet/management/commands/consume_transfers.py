from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from testproject.wallet.messages import ACT, ONCE
from testproject.wallet.streams import STREAM, redis_url


class Command(BaseCommand):
    help = "Act upon the transfers in a Redis stream until SIGTERM. Any number of these processes share the work."
    requires_system_checks = ()  # they load the pages, which it does not serve

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--stream", default=STREAM)
        parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}", help="of this consumer")
        parser.add_argument("--way", choices=ACT, default=ONCE.slug)
        parser.add_argument("--claim-after", type=float, default=60.0, help="seconds; default: 60")
        parser.add_argument("--die", action="store_true", help="SIGKILL itself between its first commit and the ack")

    def handle(self, *args: Any, **options: Any) -> None:
        url = redis_url()
        from testproject.wallet.consumer import Consumer, redis_app

        kill = {"committed": lambda: os.kill(os.getpid(), signal.SIGKILL)} if options["die"] else {}
        app = redis_app(
            Consumer(act=ACT[options["way"]], **kill),
            url=url,
            stream=options["stream"],
            name=options["name"],
            claim_after=options["claim_after"],
        )
        asyncio.run(app.run())
