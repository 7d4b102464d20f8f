"""A transfer that comes as a message: what it has to say, and what is done about it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from django.db import transaction

from .models import Receipt
from .ways import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from .moves import Bank

    Act = Callable[[Bank, "TransferMessage"], bool]


class BadMessageError(ValueError):
    """This is not a transfer, and will not be one when it is delivered again."""


@dataclass(frozen=True, slots=True)
class TransferMessage:
    """`id` is the sender's and the same however often the message is sent; what a broker numbers is the delivery."""

    id: UUID
    source: int
    target: int
    amount: int

    @classmethod
    def parse(cls, body: object) -> Self:
        """BadMessageError if the body lacks something, or says what cannot be."""
        match body:
            case {"id": str(key), "source": int(source), "target": int(target), "amount": int(amount)} if (
                source != target and amount > 0
            ):
                with suppress(ValueError):
                    return cls(UUID(key), source, target, amount)
        raise BadMessageError(f"not a transfer: {body!r:.200}")


def act_each_time(bank: Bank, message: TransferMessage) -> bool:
    """Move the money; whether it was there. Account.DoesNotExist for an unknown account."""
    return bank.transfer(message.source, message.target, message.amount)


def act_once(bank: Bank, message: TransferMessage) -> bool:
    """Move the money unless this message was acted upon before; whether it moved now. Account.DoesNotExist likewise.

    The receipt comes first: of two deliveries at once the second waits here for the end of the first one's transaction.
    If that is a commit, there is a receipt, and if not, no money was moved either.
    """
    with transaction.atomic(using=bank.database):
        _, first = Receipt.objects.using(bank.database).get_or_create(message=message.id)
        return first and act_each_time(bank, message)


EACH = Way(
    "each",
    "Each delivery acts",
    "bank.transfer(...)",
    "The rows are locked and no money is made, but a message that is delivered twice moves it twice.",
    prevents=False,
)
ONCE = Way(
    "once",
    "A receipt in the same transaction",
    "Receipt.objects.get_or_create(message=message.id)",
    "The id of the message is stored in the transaction of its transfer, under a unique key. Another delivery finds it "
    "and does nothing, also after a consumer that was killed between commit and acknowledgement.",
    prevents=True,
)
DELIVERIES = (EACH, ONCE)
ACT: dict[str, Act] = {EACH.slug: act_each_time, ONCE.slug: act_once}
