"""What may be left at a node that cannot be told so now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .nodes import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

# What was sent on a connection that is closed now may still be executed, by a server that hangs: it is taken back again
# until this time has passed since. Seconds.
GHOSTS = 2.0


@dataclass(slots=True)
class Debt:
    """A key that may be left at a node, and the command that removes it."""

    undo: bytes
    since: float
    forget_at: float
    slot: Slot | None = None


class Debts:
    """Those to one node, by vote."""

    def __init__(self) -> None:
        self._debts: dict[str, Debt] = {}

    def __bool__(self) -> bool:
        return bool(self._debts)

    def owe(self, slot: Slot, now: float) -> None:
        """What ``slot`` has done, or may yet do, is to be taken back when the node can be reached again. A release also
        leaves the line, so it replaces what takes back the vote alone."""
        if slot.undo and (slot.final or slot.vote not in self._debts):
            self._debts[slot.vote] = Debt(slot.undo, now, now + slot.ttl + GHOSTS)

    def overtaken(self, slot: Slot) -> bool:
        """May what this last word of a claim takes back come after it? On a connection that was lost."""
        return slot.final and any(vote.startswith(slot.vote.split("-")[0]) for vote in self._debts)

    def owes(self, slot: Slot) -> bool:
        """May what ``slot`` has done be taken back yet?"""
        return slot.vote in self._debts

    def payments(self, now: float) -> Iterator[tuple[bytes, Slot]]:
        """What to send, and where its reply belongs."""
        for debt in list(self._debts.values()):
            debt.slot = Slot(now, now + GHOSTS)
            yield debt.undo, debt.slot

    def settle(self, now: float) -> None:
        """Forget those that are paid, and those that the TTL has paid."""
        for vote, debt in list(self._debts.items()):
            paid = debt.slot is not None and debt.slot.done and debt.slot.sent_at - debt.since >= GHOSTS
            if paid or now >= debt.forget_at:
                del self._debts[vote]
