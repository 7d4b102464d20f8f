"""A consumer of transfers, built on FastStream: the broker delivers at least once, the accounts see each message once.

`Consumer.on_transfer` knows no broker. With Kafka `redis_app` becomes

    broker = KafkaBroker("localhost:9092")
    broker.subscriber("transfers", group_id=GROUP, ack_policy=ACK_POLICY, auto_offset_reset="earliest")(on_transfer)

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


@dataclass(frozen=True)
class Consumer:
    """What is done with a message. `committed` is called between the commit and the acknowledgement."""

    act: Callable[[TransferMessage], bool] = act_once
    committed: Callable[[], None] = lambda: None

    async def on_transfer(self, body: Any) -> None:
        """Any body, because one that FastStream itself refuses would be delivered again for ever."""
        try:
            message = TransferMessage.parse(body)
            # One thread for all of them, which keeps its connection: the ORM has no transactions for asyncio.
            await sync_to_async(self.receive)(message)
        except (ValueError, Account.DoesNotExist) as error:
            logger.error("Dropped: %s", error)
        else:
            self.committed()

    def receive(self, message: TransferMessage) -> None:
        close_old_connections()  # as before each request: the database may have been restarted since the last message
        self.act(message)


def redis_app(consumer: Consumer, *, url: str, stream: str, name: str, claim_after: float) -> FastStream:
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
        broker.subscriber(stream=reader, ack_policy=ACK_POLICY)(consumer.on_transfer)
    return FastStream(broker, logger=logger, on_startup=[make_group])


def consume(pipe: Any, *, act: Callable[[TransferMessage], bool], dies: bool, **reader: Any) -> None:
    """What a process of the replay does; `dies`: it kills itself between its first commit and the acknowledgement."""
    die = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if dies else (lambda: None)
    asyncio.run(redis_app(Consumer(act, die), **reader).run())


async def publish(url: str, stream: str, bodies: list[dict[str, Any]]) -> None:
    async with RedisBroker(url) as broker:
        for body in bodies:
            await broker.publish(body, stream=stream)
