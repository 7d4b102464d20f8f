"""The ways to sell, side by side: what each one is called, what it does, what it promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """`code` stands in its function in sales.py; `prevents` says whether it promises not to sell what is not there.

    `pauses`: is one worker stopped in the middle of a sale until the others are done? Only under a lease: whoever is
    stopped with any other lock makes the others wait.
    """

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool
    pauses: bool = False


NONE = Way(
    "none",
    "No lock",
    "",
    "Look, pack, take one off the stock. Workers that look at the same time all see the last one.",
    prevents=False,
)
ADVISORY = Way(
    "advisory",
    "Advisory lock",
    'advisory_lock("item:7")',
    "One name per item: its sales go one at a time, those of other items meanwhile.",
    prevents=True,
)
ROW = Way(
    "row",
    "Row lock",
    "with row_lock(Item, pk=pk)",
    "The row is locked from the look to the commit. SQLite has no row locks; there the transaction begins with the "
    "write lock of the whole database.",
    prevents=True,
)
LEASE = Way(
    "lease",
    "Lease alone",
    'advisory_lock("item:7", using=..., ttl=0.5)',
    "A lock with a TTL. One worker falls asleep while it packs, its lease runs out, the others sell everything, and "
    "then it wakes up and writes down the stock as it remembers it.",
    prevents=False,
    pauses=True,
)
FENCED = Way(
    "fenced",
    "Lease and fence",
    "Item.objects.fenced(lease)",
    "The same worker, the same sleep. The row has been written with a later token, and the database refuses its write.",
    prevents=True,
    pauses=True,
)
SAVED = Way(
    "saved",
    "Lease and save(fence=)",
    "item.save(fence=lease)",
    "The same for an instance that is saved: its write carries the token, and is refused.",
    prevents=True,
    pauses=True,
)
TRIGGER = Way(
    "trigger",
    "Lease and enforce_fence",
    "class Item(FencedModel): enforce_fence = True",
    "A script that knows nothing of fenced writes sends a plain UPDATE with its token. The table's trigger refuses it.",
    prevents=True,
    pauses=True,
)
WAYS = (NONE, ADVISORY, ROW, LEASE, FENCED, SAVED, TRIGGER)
