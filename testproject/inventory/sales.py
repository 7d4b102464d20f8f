"""One sale in each way. `pack` is the work between the look and the write, `using` the alias of the leases; False: sold
out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import F

from django_distlock import advisory_lock, row_lock

from .models import Item, Sale

if TYPE_CHECKING:
    from collections.abc import Callable

    Pack = Callable[[], None]
    Sell = Callable[[int, Pack, str], bool]
    Write = Callable[[Item, int], None]

TTL = 0.5  # seconds


def sell_none(pk: int, pack: Pack, using: str) -> bool:
    if Item.objects.get(pk=pk).stock < 1:
        return False
    pack()
    Item.objects.filter(pk=pk).update(stock=F("stock") - 1)
    Sale.objects.create(item_id=pk)
    return True


def sell_advisory(pk: int, pack: Pack, using: str) -> bool:
    with advisory_lock(f"item:{pk}"):
        return sell_none(pk, pack, using)


def sell_row(pk: int, pack: Pack, using: str) -> bool:
    with row_lock(Item, pk=pk) as item:
        if item.stock < 1:
            return False
        pack()
        item.stock -= 1
        item.save()
        Sale.objects.create(item=item)
        return True


def sell_leased(write: Write) -> Sell:
    """Under a lease that can run out before `write` does: it gets the item as it was read, and the token."""

    def sell(pk: int, pack: Pack, using: str) -> bool:
        with advisory_lock(f"item:{pk}", using=using, ttl=TTL) as lease:
            item = Item.objects.get(pk=pk)
            if item.stock < 1:
                return False
            pack()
            # The bare token: with the lease this process itself would notice, which here the database is to do.
            write(item, lease.fence)
            Sale.objects.create(item=item)
            return True

    return sell


def write_blindly(item: Item, fence: int) -> None:
    Item.objects.filter(pk=item.pk).update(stock=item.stock - 1)


def write_fenced(item: Item, fence: int) -> None:
    Item.objects.fenced(fence).filter(pk=item.pk).update(stock=item.stock - 1)


def write_saved(item: Item, fence: int) -> None:
    item.stock -= 1
    item.save(fence=fence)


def write_watched(item: Item, fence: int) -> None:
    """As a script would that knows nothing of fenced(): the trigger of the model's enforce_fence is what refuses."""
    Item.objects.filter(pk=item.pk).update(stock=item.stock - 1, fence=fence)


SELL: dict[str, Sell] = {
    "none": sell_none,
    "advisory": sell_advisory,
    "row": sell_row,
    "lease": sell_leased(write_blindly),
    "fenced": sell_leased(write_fenced),
    "saved": sell_leased(write_saved),
    "trigger": sell_leased(write_watched),
}
