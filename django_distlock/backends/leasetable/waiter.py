"""Waiters of the lease table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic

from .records import SIGN_OF_LIFE, Crowded, Store, Ticket

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

# A claim whose first statement is on its way.
ASKING = None

# Seconds between two looks: the next in turn looks every 50 µs, each one behind it looks 250 µs less often. Where a
# look takes long, there are fewer of them, so that they are not all that the server does.
NEXT, PER_PLACE, LONGEST_PAUSE = 0.00005, 0.00025, 0.05
STATEMENTS_PER_TURN = 4
# A lock that is held for long is looked at less often: by a twentieth of the time for which nothing has changed.
SHARE_OF_HOLD, LONGEST_OF_NEXT = 0.05, 0.02


class Waiter:
    """One claim with a ticket. ``deadline`` is the caller's; statements have time ``until`` then or a little later."""

    __slots__ = ("_ahead", "_place", "_scene", "_seen_at", "_since", "_took", "asking", "deadline", "until")

    def __init__(self, ticket: Ticket, deadline: float, until: float) -> None:
        self._place, self._ahead = ticket
        self.deadline, self.until = deadline, until
        # whose the lease was and how many were ahead at the last look, and since when that was so
        self._scene: tuple[int | None, int] = (None, 0)
        self._since = self._seen_at = monotonic()
        self._took = 0.0
        # is a statement on its way that may grant the lease?
        self.asking = False

    def pause(self) -> float:
        """Seconds until the next look."""
        next_one, per_place = max(NEXT, self._took), max(PER_PLACE, self._took * STATEMENTS_PER_TURN)
        steady = min((monotonic() - self._since) * SHARE_OF_HOLD, LONGEST_OF_NEXT)
        return min(max(next_one + per_place * self._ahead, steady), LONGEST_PAUSE)

    def look(self, store: Store, claim: Claim, holder: str) -> Flow[int | None]:
        """See how things stand, and take the lease if it is our turn; its fence, or None."""
        try:
            return (yield from self._look(store, claim, holder))
        except Crowded as error:
            if error.uncertain:
                raise
            return None  # others of this process had their turn: as far as we know the lease is still taken

    def _look(self, store: Store, claim: Claim, holder: str) -> Flow[int | None]:
        until, asked = self.until, monotonic()
        seen = yield from store.run(until, "look", claim, self._place)
        now = monotonic()
        self._took = min(now - asked, LONGEST_OF_NEXT)
        if seen.place is None:  # asleep for so long that the ticket was deleted
            self._place, self._ahead = yield from store.run(until, "join", claim, holder)
            self._seen_at = now
            return None
        self._ahead = seen.ahead
        if self._scene != (seen.fence, seen.ahead):
            self._scene, self._since = (seen.fence, seen.ahead), now
        if seen.token is None and not seen.ahead:
            self.asking = True
            fence: int | None = yield from store.run(until, "take_turn", claim, holder, self._place)
            self.asking = fence is not None
            return fence
        if now - self._seen_at >= SIGN_OF_LIFE:
            yield from store.run(until, "refresh", claim, self._place)
            self._seen_at = now
        return None
