"""The waiters of the lease table: how often each reads the lease, and how it takes its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic

from .records import SIGN_OF_LIFE, StoreOverloaded, Ticket

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

    from .statements import Store

# Stands for a claim whose first statement has not returned.
ASKING = None

# Seconds between two looks: 50 µs for the first waiter, and 250 µs more for each place behind it. Where a look takes
# long they are fewer, so that the server has time for other statements.
NEXT, PER_PLACE, LONGEST_PAUSE = 0.00005, 0.00025, 0.05
STATEMENTS_PER_TURN = 4
# The pause also grows with the time for which nothing has changed: to a twentieth of it, up to 20 ms.
SHARE_OF_HOLD, LONGEST_OF_NEXT = 0.05, 0.02


class TicketHolder:
    """One claim with a ticket. ``deadline`` is the caller's; statements may take ``until`` then or a little longer."""

    __slots__ = ("_ahead", "_place", "_scene", "_seen_at", "_since", "_took", "asking", "deadline", "until")

    def __init__(self, ticket: Ticket, deadline: float, until: float) -> None:
        self._place, self._ahead = ticket
        self.deadline, self.until = deadline, until
        # the fence of the lease and the waiters ahead, as they were at the last look, and since when
        self._scene: tuple[int | None, int] = (None, 0)
        self._since = self._seen_at = monotonic()
        self._took = 0.0
        # whether a statement is under way that may grant the lease
        self.asking = False

    def pause(self) -> float:
        """Seconds until the next look."""
        next_one, per_place = max(NEXT, self._took), max(PER_PLACE, self._took * STATEMENTS_PER_TURN)
        steady = min((monotonic() - self._since) * SHARE_OF_HOLD, LONGEST_OF_NEXT)
        return min(max(next_one + per_place * self._ahead, steady), LONGEST_PAUSE)

    def look(self, store: Store, claim: Claim, holder: str) -> Flow[int | None]:
        """Read the lease, and take it if it is this waiter's turn; its fence, or None."""
        try:
            return (yield from self._look(store, claim, holder))
        except StoreOverloaded as error:
            if error.uncertain:
                raise
            return None  # other callers of this process had the session; the lease may still be taken

    def _look(self, store: Store, claim: Claim, holder: str) -> Flow[int | None]:
        sql, until, asked = store.statements, self.until, monotonic()
        seen = yield from store.run(until, sql.look, claim, self._place)
        now = monotonic()
        self._took = min(now - asked, LONGEST_OF_NEXT)
        if seen.place is None:  # the process was suspended, and the ticket deleted
            self._place, self._ahead = yield from store.run(until, sql.join, claim, holder)
            self._seen_at = now
            return None
        self._ahead = seen.ahead
        if self._scene != (seen.fence, seen.ahead):
            self._scene, self._since = (seen.fence, seen.ahead), now
        if seen.token is None and not seen.ahead:
            self.asking = True
            fence: int | None = yield from store.run(until, sql.take_turn, claim, holder, self._place)
            self.asking = fence is not None
            return fence
        if now - self._seen_at >= SIGN_OF_LIFE:
            yield from store.run(until, sql.refresh, claim)
            self._seen_at = now
        return None
