"""One sale in each way. `pack` is the work between the look and the write; False: sold out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import F

from django_distlock import advisory_lock, row_lock

from .models import Item, Sale

if TYPE_CHECKING:
    from collections.abc import Callable

    Pack = Callable[[], None]

LEASES = "leasetable"  # an alias of the project's DISTLOCK
TTL = 0.5  # seconds


def sell_none(pk: int, pack: Pack) -> bool:
    if Item.objects.get(pk=pk).stock < 1:
        return False
    pack()
    Item.objects.filter(pk=pk).update(stock=F("stock") - 1)
    Sale.objects.create(item_id=pk)
    return True


def sell_advisory(pk: int, pack: Pack) -> bool:
    with advisory_lock(f"item:{pk}"):
        return sell_none(pk, pack)


def sell_row(pk: int, pack: Pack) -> bool:
    with row_lock(Item, pk=pk) as item:
        if item.stock < 1:
            return False
        pack()
        item.stock -= 1
        item.save()
        Sale.objects.create(item=item)
        return True


def sell_lease(pk: int, pack: Pack) -> bool:
    with advisory_lock(f"item:{pk}", using=LEASES, ttl=TTL):
        stock = Item.objects.get(pk=pk).stock
        if stock < 1:
            return False
        pack()
        Item.objects.filter(pk=pk).update(stock=stock - 1)
        Sale.objects.create(item_id=pk)
        return True


def sell_fenced(pk: int, pack: Pack) -> bool:
    with advisory_lock(f"item:{pk}", using=LEASES, ttl=TTL) as lease:
        # The bare token: with the lease this process itself would notice, which here the database is to do.
        items = Item.objects.fenced(lease.fence)
        stock = items.get(pk=pk).stock
        if stock < 1:
            return False
        pack()
        items.filter(pk=pk).update(stock=stock - 1)
        Sale.objects.create(item_id=pk)
        return True


SELL = {
    "none": sell_none,
    "advisory": sell_advisory,
    "row": sell_row,
    "lease": sell_lease,
    "fenced": sell_fenced,
}
