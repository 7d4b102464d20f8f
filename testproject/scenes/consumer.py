"""A consumer of transfers, built on FastStream: the broker delivers at least once, the accounts see each message once.

The handler knows no broker. With Kafka the subscriber of `redis_app` becomes

    subscriber = KafkaBroker("localhost:9092").subscriber(
        "transfers", group_id=GROUP, ack_policy=ACK_POLICY, auto_offset_reset="earliest")
    subscriber(on_transfer(act_once))

where the group itself gives what a dead consumer has not acknowledged to another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import close_old_connections, transaction
from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from redis.exceptions import ResponseError

from .models import Account, Receipt
from .wallet import row, transfer

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

GROUP = "wallet"
# Acknowledged when the handler has returned, so after the commit, and left to be delivered again when it has failed.
# FastStream's defaults are others: Kafka's acknowledges before the handler, Redis' has a name that says "reject".
ACK_POLICY = AckPolicy.NACK_ON_ERROR


@dataclass(frozen=True, slots=True)
class TransferMessage:
    """`id` is the sender's and the same however often the message is sent; what a broker numbers is the delivery."""

    id: UUID
    source: int
    target: int
    amount: int

    @classmethod
    def parse(cls, body: object) -> Self:
        """ValueError if the body lacks something, or says what cannot be, and so when it is delivered again."""
        match body:
            case {"id": str(key), "source": int(source), "target": int(target), "amount": int(amount)} if (
                source != target and amount > 0
            ):
                with suppress(ValueError):
                    return cls(UUID(key), source, target, amount)
        raise ValueError(f"not a transfer: {body!r:.200}")


def act_each_time(message: TransferMessage) -> bool:
    """Move the money; whether it was there. Account.DoesNotExist for an unknown account."""
    return transfer(row, message.source, message.target, message.amount)


def act_once(message: TransferMessage) -> bool:
    """Move the money unless this message was acted upon before; whether it moved now. Account.DoesNotExist likewise.

    The receipt comes first: of two deliveries at once the second waits here for the end of the first one's transaction.
    If that is a commit, there is a receipt, and if not, no money was moved either.
    """
    with transaction.atomic():
        _, first = Receipt.objects.get_or_create(message=message.id)
        return first and act_each_time(message)


def on_transfer(act: Callable[[TransferMessage], bool]) -> Callable[[Any], Any]:
    """The handler of a message. It takes any body: one that FastStream itself refuses would be delivered for ever."""

    def receive(message: TransferMessage) -> None:
        close_old_connections()  # as before each request: the database may have been restarted since the last message
        act(message)

    async def handle(body: Any) -> None:
        try:
            # One thread for all of them, which keeps its connection: the ORM has no transactions for asyncio.
            await sync_to_async(receive)(TransferMessage.parse(body))
        except (ValueError, Account.DoesNotExist) as error:
            logger.error("Dropped: %s", error)

    return handle


def redis_app(
    act: Callable[[TransferMessage], bool], *, url: str, stream: str, name: str, claim_after: float
) -> FastStream:
    """An application that reads `stream` as the member `name` of the group.

    `claim_after`: how many seconds after its delivery an unacknowledged message is taken from its reader. It is meant
    to be longer than any transfer takes; if it is not, the message is merely delivered once more.
    """
    broker = RedisBroker(url, logger=logger)

    async def make_group() -> None:
        """FastStream would let the group begin with what comes after it, and lose what was sent before."""
        client = await broker.connect()
        try:
            await client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    # A subscriber with min_idle_time reads nothing but what others have left (XAUTOCLAIM), hence two of them. One
    # message at a time, or the first to read takes all there are, and they grow old while they wait for their turn.
    for member, idle in ((name, None), (f"{name}-claims", round(claim_after * 1000))):
        reader = StreamSub(stream, group=GROUP, consumer=member, max_records=1, min_idle_time=idle)
        broker.subscriber(stream=reader, ack_policy=ACK_POLICY)(on_transfer(act))
    return FastStream(broker, logger=logger, on_startup=[make_group])


def consume(pipe: Any, act: Callable[[TransferMessage], bool], *, dies: bool, **reader: Any) -> None:
    """What a process of the replay does; `dies`: it kills itself between its first commit and the acknowledgement."""

    def act_and_die(message: TransferMessage) -> bool:
        act(message)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    asyncio.run(redis_app(act_and_die if dies else act, **reader).run())


async def publish(url: str, stream: str, bodies: list[dict[str, Any]]) -> None:
    async with RedisBroker(url) as broker:
        for body in bodies:
            await broker.publish(body, stream=stream)
