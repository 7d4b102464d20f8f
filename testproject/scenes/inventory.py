"""The last items: one sale in each way, by several processes. One may be stopped in the middle of a sale."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from django.db import IntegrityError
from django.db.models import F

from django_distlock import LockLost, advisory_lock
from testproject.replay.processes import Team
from testproject.replay.scene import Column, Figures, Option, Scene, Way, way

from .models import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

TTL = 0.5  # seconds
PACKING = 0.002


@way("No lock", prevents=False)
def none(item: Item, fence: int | None) -> None:
    """Look, pack, take one off the stock. Workers that look at the same time all see the last one."""
    Item.objects.filter(pk=item.pk).update(stock=F("stock") - 1)


@way("Lease alone", 'advisory_lock("item:7", using=..., ttl=0.5)', prevents=False, pauses=True)
def lease(item: Item, fence: int | None) -> None:
    """A lock with a TTL. One worker falls asleep while it packs, its lease runs out, the others sell everything, and
    then it wakes up and writes down the stock as it remembers it."""
    Item.objects.filter(pk=item.pk).update(stock=item.stock - 1)


@way("Lease and fence", "Item.objects.fenced(lease)", pauses=True)
def fenced(item: Item, fence: int | None) -> None:
    """The same worker, the same sleep. The row has been written with a later token, and the database refuses its
    write."""
    Item.objects.fenced(fence).filter(pk=item.pk).update(stock=item.stock - 1)


@way("Lease and enforce_fence", "class Item(FencedModel): enforce_fence = True", pauses=True)
def trigger(item: Item, fence: int | None) -> None:
    """A script that knows nothing of fenced writes sends a plain UPDATE with its token. The table's trigger refuses
    it."""
    Item.objects.filter(pk=item.pk).update(stock=item.stock - 1, fence=fence)


def sell(way: Way, pk: int, pack: Callable[[], None]) -> bool:
    """Look, pack, and write as the way does, under a lease that may end meanwhile. The write gets the bare token: with
    the lease itself this process would notice, which here the database is to do."""
    held = nullcontext() if way is none else advisory_lock(f"item:{pk}", using="leasetable", ttl=TTL)
    with held as lease:
        item = Item.objects.get(pk=pk)
        if item.stock < 1:
            return False
        pack()
        way.run(item, lease and lease.fence)
        return True


class Inventory(Scene):
    name = "inventory"
    help = "Many processes sell the last items, one of them stopped beyond the end of its lease."
    ways = (none, lease, fenced, trigger)
    options = (
        Option("stock", 40, "units there are"),
        Option("workers", 8, "processes that sell"),
    )
    columns = (
        Column("Stock", "stock"),
        Column("Sold", "sold"),
        Column("Too many", "oversold", alarm=True),
        Column("Left", "left", alarm=True),
        Column("Late writes refused", "late"),
        Column("Per second", "per_second", pattern="{:.0f}"),
    )
    fault = ("oversold",)
    plots = (("sold", "Units sold of {stock}"), ("per_second", "Sales per second, the sleep of one worker included"))
    story = "{sold} of {stock} sold, {oversold} too many, {left} left; late writes refused: {late}"

    def act(self, way: Way, stock: int, workers: int) -> list[Figures]:
        return [sold_by_all(way, stock, workers)]

    def more_problems(self, row: Figures, prevents: bool) -> Iterator[str]:
        if prevents and row["pauses"] and not row["late"]:
            yield "the worker that slept was not refused."


def sold_by_all(way: Way, stock: int, workers: int) -> Figures:
    """All sell at once until there is nothing left. If the way pauses, the first one goes ahead until it sleeps in the
    middle of its sale, and wakes when the others are done."""
    item = Item.objects.create(name=f"replayed {way.slug}", stock=stock)
    began = time.monotonic()
    with Team() as team:
        first = team.start(sell_all, way, item.pk, way.pauses)
        with first.asleep() if way.pauses else nullcontext():
            others = [team.start(sell_all, way, item.pk, False) for _ in range(1, workers)]
            outcomes = [other.result() for other in others]
        outcomes.append(first.result())
    seconds, sold = time.monotonic() - began, sum(sold for sold, _ in outcomes)
    item.refresh_from_db()
    item.delete()
    return {
        "stock": stock,
        "sold": sold,
        "oversold": max(0, sold - stock),
        "left": item.stock,
        "late": sum(late for _, late in outcomes),
        "pauses": way.pauses,
        "per_second": round(sold / seconds, 1),
    }


def sell_all(pipe: Connection, way: Way, pk: int, sleepy: bool) -> tuple[int, int]:
    """What one process does: sell until there is nothing left. How much it has sold, and how many of its writes were
    refused as late. A sleepy worker stops itself once."""

    def pack() -> None:
        time.sleep(PACKING)
        if sleepy and not (sold or late):  # once
            os.kill(os.getpid(), signal.SIGSTOP)

    sold = late = 0
    while True:
        try:
            if not sell(way, pk, pack):
                return sold, late
            sold += 1
        except LockLost as error:
            # Others are told after the sale that the lease is over: the unit has left the house.
            refused = "came too late" in str(error)
            late, sold = late + refused, sold + (not refused)
        except IntegrityError as error:
            if "stale fencing token" not in str(error):
                raise
            late += 1
