"""Transfers as messages: each is sent twice to consumers built on FastStream, one of which is killed.

A broker delivers at least once, and the accounts are to see each message once. The handler knows no broker. With Kafka
its subscriber is the one below, and the group itself gives to another what a dead consumer has not acknowledged.

    KafkaBroker("localhost:9092").subscriber(
        "transfers", group_id=GROUP, ack_policy=AckPolicy.NACK_ON_ERROR, auto_offset_reset="earliest")
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.db import close_old_connections, transaction

from testproject.databases import redis_url, services
from testproject.replay import ReplayError
from testproject.replay.processes import SECONDS, Team, wait_for
from testproject.replay.scene import Column, Figures, Option, Scene, Way, way

from .models import Account, Receipt
from .wallet import fresh_accounts, row, transfer

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

GROUP, CLAIM_AFTER = "wallet", 200  # milliseconds after which an unacknowledged message is taken from its reader
OWNER = "consumer replay"  # nobody's account: what the replay makes, it clears away
START, AMOUNT = 1_000_000, 1


@way("Each delivery acts", "transfer(row, source, target, amount)", prevents=False)
def each(message: uuid.UUID, source: int, target: int, amount: int) -> None:
    """The rows are locked and no money is made, but a message that is delivered twice moves it twice."""
    transfer(row, source, target, amount)


@way("A receipt in the same transaction", "Receipt.objects.get_or_create(message=message.id)")
def once(message: uuid.UUID, source: int, target: int, amount: int) -> None:
    """The id of the message is stored in the transaction of its transfer, under a unique key. Another delivery waits
    there, finds it and does nothing, also after a consumer that was killed between commit and acknowledgement."""
    with transaction.atomic():
        _, first = Receipt.objects.get_or_create(message=message)
        if first:
            transfer(row, source, target, amount)


def parsed(body: object) -> tuple[uuid.UUID, int, int, int]:
    """The id is the sender's; what a broker numbers is the delivery. ValueError for what can never be a transfer."""
    match body:
        case {"id": str(key), "source": int(source), "target": int(target), "amount": int(amount)} if amount > 0:
            return uuid.UUID(key), source, target, amount
    raise ValueError(f"not a transfer: {body!r:.200}")


def on_transfer(way: Way, dies: bool) -> Callable[[Any], Any]:
    """The handler of a message. It takes any body: one that FastStream itself refuses would be delivered for ever."""

    def receive(body: Any) -> None:
        close_old_connections()  # as before each request: the database may have been restarted since the last message
        way.run(*parsed(body))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    async def handle(body: Any) -> None:
        try:
            # One thread for all of them, which keeps its connection: the ORM has no transactions for asyncio.
            await sync_to_async(receive)(body)
        except (ValueError, Account.DoesNotExist) as error:
            logger.error("Dropped: %s", error)

    return handle


def consume(pipe: Any, way: Way, url: str, stream: str, name: str, dies: bool = False) -> None:
    """What a process does; `dies`: it kills itself between its first commit and the acknowledgement."""
    from faststream import AckPolicy, FastStream
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(url, logger=logger)
    # A subscriber with min_idle_time reads nothing but what others have left (XAUTOCLAIM), hence two of them. One
    # message at a time, or the first to read takes all there are, and they grow old while they wait for their turn.
    for member, idle in ((name, None), (f"{name}-claims", CLAIM_AFTER)):
        reader = StreamSub(stream, group=GROUP, consumer=member, max_records=1, min_idle_time=idle)
        # Acknowledged after the commit, and delivered again if that fails. FastStream's defaults are others.
        broker.subscriber(stream=reader, ack_policy=AckPolicy.NACK_ON_ERROR)(on_transfer(way, dies))
    asyncio.run(FastStream(broker, logger=logger).run())


async def publish(url: str, stream: str, bodies: list[dict[str, Any]]) -> None:
    from faststream.redis import RedisBroker

    async with RedisBroker(url) as broker:
        for body in bodies:
            await broker.publish(body, stream=stream)


class Consumer(Scene):
    name = "consumer"
    help = "Transfers as messages, each delivered twice to several consumers, one of which is killed. Needs Redis."
    ways = (each, once)
    options = (
        Option("messages", 100, "transfers per way"),
        Option("consumers", 3, "processes, without the one that is killed"),
    )
    columns = (
        Column("Messages", "messages"),
        Column("Transfers made", "acts"),
        Column("Acted more than once", "twice", alarm=True),
        Column("Never acted", "never", alarm=True),
        Column("Money made", "drift", alarm=True),
    )
    fault = ("twice",)
    story = "{messages} messages, each sent twice and one delivered once more, made {acts} transfers"

    def act(self, way: Way, messages: int, consumers: int) -> list[Figures]:
        server = services().get("redis1")
        if server is None or find_spec("faststream") is None or find_spec("redis") is None:
            raise ReplayError("The consumer needs FastStream and Redis: run `make venv services`.")
        hub, *others = fresh_accounts(OWNER, messages + 1, START)
        # One account takes part in all transfers, in half of them as the source: locks taken in the order of the
        # message would end in deadlocks. The other account is the message's own, and tells how often it has acted.
        pairs = [(hub, other) if number % 2 else (other, hub) for number, other in enumerate(others)]
        bodies = [{"id": str(uuid.uuid4()), "source": a, "target": b, "amount": AMOUNT} for a, b in pairs]
        deliver(way, bodies, consumers, redis_url(server, quote(server["password"], safe="")))
        balances = dict(Account.objects.filter(owner=OWNER).values_list("pk", "balance"))
        acts = [abs(START - balances[other]) // AMOUNT for other in others]
        Account.objects.filter(owner=OWNER).delete()
        Receipt.objects.filter(pk__in=[body["id"] for body in bodies]).delete()
        drift, twice = sum(balances.values()) - START * len(balances), sum(times > 1 for times in acts)
        return [{"messages": messages, "acts": sum(acts), "twice": twice, "never": acts.count(0), "drift": drift}]


def deliver(way: Way, bodies: list[dict[str, Any]], consumers: int, url: str) -> None:
    """Send each message twice, and return when all of them were acknowledged."""
    import redis

    stream = f"wallet-transfers-{uuid.uuid4()}"
    with redis.Redis.from_url(url) as client, Team() as team:
        # FastStream would let the group begin with what comes after it, and lose what was sent before.
        client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        client.expire(stream, SECONDS)  # should this process be killed
        asyncio.run(publish(url, stream, bodies * 2))
        doomed = team.start(consume, way, url, stream, "doomed", dies=True).process
        doomed.join(SECONDS)
        if doomed.exitcode != -signal.SIGKILL:
            raise ReplayError("The consumer that was to die between commit and acknowledgement did not.")
        members = [team.start(consume, way, url, stream, f"member-{number}") for number in range(consumers)]

        def acknowledged() -> bool:
            (group,), sent = client.xinfo_groups(stream), client.xinfo_stream(stream)["last-generated-id"]
            return group["last-delivered-id"] == sent and not group["pending"]

        wait_for(acknowledged, f"A consumer ended, or there were messages left after {SECONDS} s.", members)
        for member in members:
            member.process.kill()
        client.delete(stream)
