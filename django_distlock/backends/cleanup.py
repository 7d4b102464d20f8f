"""What those leave behind who could not take leave: claims to be undone once the engine answers again."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, run

if TYPE_CHECKING:
    from typing import Any

    from django_distlock.records import Claim

# Whoever is interrupted between a statement and its reply cannot know when a server that hangs will execute it; it is
# undone again and again for this time after the first success. Seconds.
GHOSTS = 5.0
SWEEP_PATIENCE, SWEEP_PAUSE = 0.5, 0.25


class StoreError(Exception):
    """The store did not do what was asked. ``uncertain``: it may have, or may do so later."""

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class Store(Protocol):
    """Where the leases are. ``run`` does one operation by the monotonic time ``until``, or raises StoreError."""

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]: ...


@dataclass(slots=True)
class Remnant:
    """A claim that may still have a ticket, or a lease that nobody knows of."""

    claim: Claim
    uncertain: bool
    due: float
    forget_at: float
    done_at: float | None = None
    in_hand: bool = False


class PendingCleanup:
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
        now = monotonic()
        with self._guard:
            self.left[claim.token] = Remnant(claim, uncertain, now, now + (claim.ttl or 0.0) + GHOSTS)
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._sweep, name=self._name, daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had: the next tick tries again
                thread.start()
                self._thread = thread

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
            now = monotonic()
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
            run(self._undo(remnant.claim))
        except StoreError:
            failed = True
        now = monotonic()
        remnant.due = now + SWEEP_PAUSE
        if not failed and remnant.done_at is None:
            remnant.done_at = now + (GHOSTS if remnant.uncertain else 0.0)
        with self._guard:
            remnant.in_hand = False
            if now >= remnant.forget_at or (not failed and remnant.done_at is not None and now >= remnant.done_at):
                self.left.pop(remnant.claim.token, None)

    def _undo(self, claim: Claim) -> Flow[None]:
        until = monotonic() + SWEEP_PATIENCE
        yield from self._store.run(until, "give", claim)
        yield from self._store.run(until, "leave", claim)

    def close(self) -> None:
        """Forget them: what is left ends by itself."""
        with self._guard:
            self.left.clear()
            thread = self._thread
        if thread is not None:
            thread.join(2 * SWEEP_PATIENCE)
