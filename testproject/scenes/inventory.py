"""The last items: one sale in each way, by several processes. One may be stopped in the middle of a sale."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connection
from django.db.models import F

from django_distlock import LockLost, advisory_lock, row_lock
from django_distlock.manager.registry import registry
from testproject.replay import ReplayError, scene
from testproject.replay.processes import Team
from testproject.replay.scene import Bars, Column, Figures, Option, Scene, Stage, extra

from .models import Item, Sale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    Pack = Callable[[], None]  # the work between the look and the write
    Sell = Callable[[int, Pack, str], bool]  # False: sold out
    Write = Callable[[Item, int], None]

TTL = 0.5  # seconds
PACKING = 0.002


@dataclass(frozen=True, slots=True)
class Way(scene.Way):
    """`pauses`: is one worker stopped in the middle of a sale until the others are done? Only under a lease: whoever is
    stopped with any other lock makes the others wait."""

    pauses: bool = False


WAYS = (
    Way(
        "none",
        "No lock",
        "",
        "Look, pack, take one off the stock. Workers that look at the same time all see the last one.",
        prevents=False,
    ),
    Way(
        "advisory",
        "Advisory lock",
        'advisory_lock("item:7")',
        "One name per item: its sales go one at a time, those of other items meanwhile.",
        prevents=True,
    ),
    Way(
        "row",
        "Row lock",
        "with row_lock(Item, pk=pk)",
        "The row is locked from the look to the commit. SQLite has no row locks; there the transaction begins with the "
        "write lock of the whole database.",
        prevents=True,
    ),
    Way(
        "lease",
        "Lease alone",
        'advisory_lock("item:7", using=..., ttl=0.5)',
        "A lock with a TTL. One worker falls asleep while it packs, its lease runs out, the others sell everything, "
        "and then it wakes up and writes down the stock as it remembers it.",
        prevents=False,
        pauses=True,
    ),
    Way(
        "fenced",
        "Lease and fence",
        "Item.objects.fenced(lease)",
        "The same worker, the same sleep. The row has been written with a later token, and the database refuses its "
        "write.",
        prevents=True,
        pauses=True,
    ),
    Way(
        "saved",
        "Lease and save(fence=)",
        "item.save(fence=lease)",
        "The same for an instance that is saved: its write carries the token, and is refused.",
        prevents=True,
        pauses=True,
    ),
    Way(
        "trigger",
        "Lease and enforce_fence",
        "class Item(FencedModel): enforce_fence = True",
        "A script that knows nothing of fenced writes sends a plain UPDATE with its token. The table's trigger refuses "
        "it.",
        prevents=True,
        pauses=True,
    ),
)


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


def sell_all(pipe: Connection, slug: str, pk: int, using: str, sleepy: bool) -> tuple[int, list[str]]:
    """What one process does: sell until there is nothing left. How many of its writes were refused as late, and the
    error that ended it. A sleepy worker stops itself once."""

    def pack() -> None:
        nonlocal sleepy
        time.sleep(PACKING)
        if sleepy:
            sleepy = False
            os.kill(os.getpid(), signal.SIGSTOP)

    late = 0
    connection.ensure_connection()
    try:
        while True:
            try:
                if not SELL[slug](pk, pack, using):
                    return late, []
            except LockLost as error:
                late += "came too late" in str(error)  # the others tell after the sale that the lease is over
            except IntegrityError as error:
                if "stale fencing token" not in str(error):
                    raise
                late += 1
    except Exception as error:
        return late, [f"{type(error).__name__}: {error}"]
    finally:
        connection.close()


class Inventory(Scene):
    name = "inventory"
    help = "Many processes sell the last items, one of them stopped beyond the end of its lease."
    ways = WAYS
    options = (
        Option("stock", 40, "units there are"),
        Option("workers", 8, "processes that sell", least=2),
        Option("using", "leasetable", "lock alias of the leases"),
    )
    columns = (
        Column("Stock", "stock"),
        Column("Sold", "sold"),
        Column("Too many", "oversold", alarm=True),
        Column("Left", "left"),
        Column("Late writes refused", "late"),
        Column("Per second", lambda way: f"{way['per_second']:.0f}"),
    )
    bars = (
        Bars(
            "Units sold of {stock}",
            lambda way: way["sold"],
            lambda way: f"{way['sold']}{extra(way['oversold'])}",
            alarm=lambda way: way["oversold"],
        ),
        Bars(
            "Sales per second, the sleep of one worker included",
            lambda way: way["per_second"],
            lambda way: f"{way['per_second']:.0f}",
        ),
    )

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        backend = registry.entry(given["using"]).backend
        if not (backend.supports_ttl and backend.supports_fencing):
            raise ReplayError(
                f"The locks of {given['using']!r} have no TTL or no fencing tokens: name another alias with --using."
            )
        with Team(f"{__name__}:sell_all", given["workers"]) as team:
            facts = {"workers": given["workers"], "using": given["using"]}
            yield Stage(lambda way: self.act(team, way, given), facts)

    def act(self, team: Team, way: Way, given: Mapping[str, Any]) -> Figures:
        item = Item.objects.create(name=f"replayed {way.slug}", stock=given["stock"])
        began = time.monotonic()
        outcomes = sold_by(team, given["workers"], way, item.pk, given["using"])
        seconds = time.monotonic() - began
        item.refresh_from_db()
        sold = item.sales.count()
        Item.objects.filter(pk=item.pk).delete()
        return {
            "stock": given["stock"],
            "sold": sold,
            "oversold": max(0, sold - given["stock"]),
            "left": item.stock,
            "late": sum(late for late, _ in outcomes),
            "pauses": way.pauses,
            "per_second": round(sold / seconds, 1),
            "errors": sorted({error for _, errors in outcomes for error in errors}),
        }

    def shown(self, way: Figures) -> bool:
        return way["oversold"] > 0

    def problems(self, way: Figures) -> Iterator[str]:
        yield from way["errors"]
        if way["prevents"] and (way["sold"], way["left"]) != (way["stock"], 0):
            yield f"{way['sold']} units of {way['stock']} sold, {way['left']} left."
        if way["prevents"] and way["pauses"] and not way["late"]:
            yield "the worker that slept was not refused."

    def story(self, way: Figures) -> str:
        late = f"; {way['late']} late write refused" if way["late"] else ""
        sold = f"{way['sold']} of {way['stock']} sold{extra(way['oversold'])}"
        return f"{way['title']}: {sold}, {way['left']} left{late}."


def sold_by(team: Team, workers: int, way: Way, pk: int, using: str) -> list[tuple[int, list[str]]]:
    """All sell at once until there is nothing left. If the way pauses, the first one goes ahead until it sleeps in the
    middle of its sale, and wakes when the others are done."""
    team.send(0, way.slug, pk, using, way.pauses)
    if way.pauses:
        team.wait_until_stopped(0)
    try:
        for number in range(1, workers):
            team.send(number, way.slug, pk, using, False)
        outcomes = [team.receive(number) for number in range(1, workers)]
    finally:
        os.kill(team.processes[0].pid, signal.SIGCONT)
    return [*outcomes, team.receive(0)]
