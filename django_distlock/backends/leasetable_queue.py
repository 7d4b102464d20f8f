"""Waiters of the lease table, and what those leave behind who could not take leave."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from django_distlock.waiting import Flow, drive

from .leasetable_rows import SIGN_OF_LIFE, Crowded, StoreError, Ticket

if TYPE_CHECKING:
    from typing import Any

    from django_distlock.records import Claim

# A claim whose first statement is on its way.
ASKING = None

# Seconds between two looks: the next in turn looks every 50 µs, each one behind it looks 250 µs less often. Where a
# look takes long, there are fewer of them, so that they are not all that the server does.
NEXT, PER_PLACE, LONGEST_PAUSE = 0.00005, 0.00025, 0.05
STATEMENTS_PER_TURN = 4
# A lock that is held for long is looked at less often: by a twentieth of the time for which nothing has changed.
SHARE_OF_HOLD, LONGEST_OF_NEXT = 0.05, 0.02

# Whoever is interrupted between a statement and its reply cannot know when a server that hangs will execute it; it is
# undone again and again for this time after the first success. Seconds.
GHOSTS = 5.0
SWEEP_PATIENCE, SWEEP_PAUSE = 0.5, 0.25


class Store(Protocol):
    """Where the leases are. ``run`` does one operation by the monotonic time ``until``, or raises StoreError."""

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]: ...


class Waiter:
    """One claim with a ticket. ``deadline`` is the caller's; statements have time ``until`` then or a little later."""

    __slots__ = ("_ahead", "_place", "_scene", "_seen_at", "_since", "_took", "asking", "deadline", "until")

    def __init__(self, ticket: Ticket, deadline: float, until: float) -> None:
        self._place, self._ahead = ticket
        self.deadline, self.until = deadline, until
        # whose the lease was and how many were ahead at the last look, and since when that was so
        self._scene: tuple[int | None, int] = (None, 0)
        self._since = self._seen_at = time.monotonic()
        self._took = 0.0
        # is a statement on its way that may grant the lease?
        self.asking = False

    def pause(self) -> float:
        """Seconds until the next look."""
        next_one, per_place = max(NEXT, self._took), max(PER_PLACE, self._took * STATEMENTS_PER_TURN)
        steady = min((time.monotonic() - self._since) * SHARE_OF_HOLD, LONGEST_OF_NEXT)
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
        until, asked = self.until, time.monotonic()
        seen = yield from store.run(until, "look", claim, self._place)
        now = time.monotonic()
        self._took = min(now - asked, LONGEST_OF_NEXT)
        if seen.place is None:  # asleep for so long that the ticket was deleted
            self._place, self._ahead = yield from store.run(until, "join", claim)
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


@dataclass(slots=True)
class Remnant:
    """A claim that may still have a ticket, or a lease that nobody knows of."""

    claim: Claim
    uncertain: bool
    due: float
    forget_at: float
    done_at: float | None = None
    in_hand: bool = False


class Remains:
    """Claims to be cleaned up behind their callers' backs, in a thread that ends when it has done what is due."""

    def __init__(self, store: Store, alias: str) -> None:
        self._store = store
        self._name = f"distlock-{alias}-sweep"
        self.left: dict[str, Remnant] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim, uncertain: bool) -> None:
        """Have the ticket and the lease of ``claim`` deleted, at once. ``uncertain``: a statement may still be
        executed."""
        now = time.monotonic()
        with self._guard:
            self.left[claim.token] = Remnant(claim, uncertain, now, now + (claim.ttl or 0.0) + GHOSTS)
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._sweep, name=self._name, daemon=True)
            self._thread.start()

    def discard(self, claim: Claim) -> bool:
        """The caller tries again with the same claim. False: not now, since it is just being undone."""
        with self._guard:
            remnant = self.left.get(claim.token)
            if remnant is not None and remnant.in_hand:
                return False
            self.left.pop(claim.token, None)
            return True

    def tick(self, now: float) -> float | None:
        """Start a sweep if one is due; when the next one is, None if nothing is left."""
        with self._guard:
            if not self.left:
                return None
            due = min(remnant.due for remnant in self.left.values())
            if due <= now:
                self._start()
            return max(due, now + SWEEP_PAUSE)

    def _sweep(self) -> None:
        while True:
            now = time.monotonic()
            with self._guard:
                due = [remnant for remnant in self.left.values() if remnant.due <= now]
                if not due:
                    self._thread = None
                    return
            for remnant in due:
                self._sweep_up(remnant)

    def _sweep_up(self, remnant: Remnant) -> None:
        with self._guard:
            if self.left.get(remnant.claim.token) is not remnant:
                return
            remnant.in_hand = True
        failed = False
        try:
            drive(self._undo(remnant.claim))
        except StoreError:
            failed = True
        now = time.monotonic()
        remnant.due = now + SWEEP_PAUSE
        if not failed and remnant.done_at is None:
            remnant.done_at = now + (GHOSTS if remnant.uncertain else 0.0)
        with self._guard:
            remnant.in_hand = False
            if now >= remnant.forget_at or (not failed and remnant.done_at is not None and now >= remnant.done_at):
                self.left.pop(remnant.claim.token, None)

    def _undo(self, claim: Claim) -> Flow[None]:
        until = time.monotonic() + SWEEP_PATIENCE
        yield from self._store.run(until, "give", claim)
        yield from self._store.run(until, "leave", claim)

    def close(self) -> None:
        """Forget them: what is left ends by itself."""
        with self._guard:
            self.left.clear()
            thread = self._thread
        if thread is not None:
            thread.join(2 * SWEEP_PATIENCE)
