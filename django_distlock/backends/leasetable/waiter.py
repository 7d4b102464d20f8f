"""The waiters of the lease table: how often each reads the lease, and how it takes its turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock

from .records import SIGN_OF_LIFE, StoreOverloaded, Ticket
from .sqlite import FILE_ERRORS

if TYPE_CHECKING:
    from django_distlock.records import Claim

    from .sqlite import SqliteStore
    from .statements import Executor, Statements, Store
    from .wakeups import WakeSocket, WakeSockets

# Stands for a claim whose first statement has not returned.
ASKING = None

# Seconds between two looks: 50 µs for the first waiter, and 250 µs more for each place behind it. Where a look takes
# long they are fewer, so that the server has time for other statements.
NEXT, PER_PLACE, LONGEST_PAUSE = 0.00005, 0.00025, 0.05
STATEMENTS_PER_TURN = 4
# The pauses are that much longer for a waiter that will be woken: looks then find what a killed process has left.
WOKEN = 20
# The pause also grows with the time for which nothing has changed: to a twentieth of it, up to 20 ms.
SHARE_OF_HOLD, LONGEST_OF_NEXT = 0.05, 0.02


class TicketHolder:
    """One claim with a ticket. ``deadline`` is the caller's; statements may take ``until`` then or a little longer."""

    __slots__ = (
        "_ahead",
        "_place",
        "_scene",
        "_seen_at",
        "_since",
        "_socket",
        "_took",
        "_turn",
        "_woken",
        "asking",
        "deadline",
        "until",
    )

    def __init__(self, ticket: Ticket, deadline: float, until: float, socket: WakeSocket | None) -> None:
        self._place, self._ahead = ticket
        self.deadline, self.until = deadline, until
        self._socket = socket
        # the fence of the lease and the waiters ahead, as they were at the last look, and since when
        self._scene: tuple[int | None, int] = (None, 0)
        self._since = self._seen_at = clock.now()
        self._took = 0.0
        # whether the last look found the lease free for this waiter
        self._turn = False
        # whether a wake-up was believed
        self._woken = False
        # whether a statement is under way that may grant the lease
        self.asking = False

    def pause(self) -> float:
        """Seconds until the next look."""
        next_one, per_place = max(NEXT, self._took), max(PER_PLACE, self._took * STATEMENTS_PER_TURN)
        steady = min((clock.now() - self._since) * SHARE_OF_HOLD, LONGEST_OF_NEXT)
        return min(max(next_one + per_place * self._ahead, steady), LONGEST_PAUSE)

    async def look(self, store: Store, claim: Claim, holder: str) -> int | None:
        """:meth:`ask` the store; None as well if other callers of this process had its session."""
        asked = clock.now()
        try:
            fence: int | None = await store.run(self.until, self.ask, store.statements, claim, holder)
        except StoreOverloaded as error:
            if error.uncertain:
                raise
            return None
        self.took(asked)
        return fence

    def ask(self, session: Executor, sql: Statements, claim: Claim, holder: str) -> int | None:
        """Read the lease, and take it if it is this waiter's turn; its fence, or None."""
        now = clock.now()
        if self._turn:  # it was just read
            self._turn = False
            return self._take(session, sql, claim, holder)
        seen = sql.look(session, claim, self._place)
        if seen.token == claim.token or (seen.token is None and not seen.ahead and seen.place is not None):
            return self._take(session, sql, claim, holder)
        if seen.place is None:  # the process was suspended, and the ticket deleted
            address = None if self._socket is None else self._socket.address
            self._place, self._ahead = sql.join(session, claim, holder, address)
            self._seen_at = now
            return None
        self._note(seen.fence, seen.ahead, now)
        if now - self._seen_at >= SIGN_OF_LIFE:
            sql.refresh(session, claim)
            self._seen_at = now
        return None

    def _take(self, session: Executor, sql: Statements, claim: Claim, holder: str) -> int | None:
        self.asking = True
        fence = sql.take_turn(session, claim, holder, self._place)
        self.asking = fence is not None
        return fence

    def _note(self, fence: int | None, ahead: int, now: float) -> None:
        self._ahead = ahead
        if self._scene != (fence, ahead):
            self._scene, self._since = (fence, ahead), now

    def wait(self, store: SqliteStore, claim: Claim, longest: float) -> None:
        """Sleep and read in turn, in this thread, until the lease is free for this waiter, or something else is due.

        A process that wakes up finds nothing of itself in the processor's caches, so what it executes then is short.
        """
        now, sql, woken = clock.now(), store.statements, False
        until = min(now + longest, self._seen_at + SIGN_OF_LIFE)
        while True:
            woken = self._sleep(min(self.pause(), until - now), until - now, sql.wakes)
            now = clock.now()
            if woken and not self._woken:  # once: datagrams may be of anybody
                self._woken = self._turn = sql.wakes.work = True
                return
            if now >= until:
                return
            try:
                fence, ahead = sql.glance(store.file(), claim, self._place)
            except FILE_ERRORS:  # the attempt that follows raises it again
                return
            self.took(now)
            if fence is None and not ahead:
                self._turn, sql.wakes.work = True, woken
                return
            self._note(fence, ahead, now)

    def _sleep(self, pause: float, longest: float, wakes: WakeSockets) -> bool:
        """Sleep until the next look. True if woken."""
        if self._socket is None or not wakes.work:
            time.sleep(max(0.0, pause))
            return self._socket is not None and self._socket.wait(0.0)
        return self._socket.wait(max(0.0, min(max(pause, min(pause * WOKEN, LONGEST_OF_NEXT)), longest)))

    def took(self, asked: float) -> None:
        """Note how long a look took that began at the monotonic time ``asked``."""
        self._took = min(clock.now() - asked, LONGEST_OF_NEXT)
