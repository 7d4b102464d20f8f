"""Stores lock names for other processes, for engines that keep only a hash of the name.

Once a second the keepalive thread checks the holds of this process. A name is stored once two checks have seen it: it
is held for over a second, or used often. A name made from user data and used once for a moment is not stored. No
acquire and no release executes an extra statement.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock, origin
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.records import Note, Noted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.backends.base import Backend

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.backends")

# Seconds between two checks.
LOOK = 1.0
# A name in use is written again after this many seconds, so that pruning by age keeps it.
AGAIN = 86_400.0
# A lock still held is written again after this many seconds, because the row may have been displaced or deleted.
HELD_AGAIN = 3600.0
# Names that are remembered at most, and names that one check writes for one alias at most.
REMEMBERED, AT_ONCE = 4096, 100


class NameBook:
    """The names that this process has seen and stored."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._looked_at = 0.0
        self._met: set[tuple[str, bytes]] = set()
        # (alias, the key as the engine lists it, name) -> when that was written
        self._written: dict[tuple[str, str, str], float] = {}
        # the holds that the last check has seen
        self._before: set[Hold] = set()
        # the holds whose beginning is stored, with the time of writing; removed once their end is stored
        self._noted: dict[Hold, tuple[Note, float]] = {}
        self._reported: set[tuple[str, str]] = set()

    def look(self, now: float, held: Iterable[Hold]) -> None:
        """Check the holds of this process and store what is due, unless the last check was less than a second ago."""
        if now - self._looked_at < LOOK:
            return
        met = {hold for hold in held if hold.backend.keeps_notes}
        due: dict[Backend, list[tuple[Hold, Note]]] = {}
        for hold, over in self._over(met):  # first: the note on the next hold must come after it
            due.setdefault(hold.backend, []).append((hold, over))
        named: dict[tuple[str, str], str] = {}
        for hold in met:
            notes = due.setdefault(hold.backend, [])
            if len(notes) < AT_ONCE and (note := self._due(hold, now)) is not None:
                listed = hold.backend.alias, hold.backend.listed_as(note.key)
                if (
                    named.setdefault(listed, note.key.name) == note.key.name
                ):  # if two names share a key, the other is next
                    notes.append((hold, note))
        self._before, self._looked_at = met, now
        for backend, notes in due.items():
            if notes:
                backend.write_notes([note for _, note in notes], functools.partial(self._done, backend, notes, now))

    def write_now(self, hold: Hold) -> None:
        """Store a hold that is known to last, without waiting for two checks."""
        backend, grant = hold.backend, hold.grant
        if backend.keeps_notes and grant is not None:
            noted = [(hold, Note(hold.key, backend.server_session(grant), hold.held_at, describe_holder(hold)))]
            done = functools.partial(self._done, backend, noted, clock.now())
            backend.write_notes([note for _, note in noted], done)

    def forget(self) -> None:
        """Drop the notes on holds. Called when the backends were replaced and their sessions closed."""
        with self._guard:
            self._noted.clear()

    def _over(self, met: set[Hold]) -> list[tuple[Hold, Note]]:
        """The stored holds that have ended on sessions that are still open.

        Without a note on their end, a later hold of such a session would be mistaken for them.
        """
        with self._guard:
            ended = [(hold, note) for hold, (note, _) in self._noted.items() if hold not in met]
            for hold, note in list(ended):
                if hold.lost is not None or hold.grant is None or not hold.backend.alive(hold.grant):
                    del self._noted[hold]
                    ended.remove((hold, note))
        return [(hold, Note(note.key, -note.session)) for hold, note in ended]

    def _due(self, hold: Hold, now: float) -> Note | None:
        backend, key, grant = hold.backend, hold.key, hold.grant
        if hold in self._before and grant is not None:
            _, written = self._noted.get(hold, (None, None))
            if written is not None and now - written < HELD_AGAIN:
                return None
            return Note(key, backend.server_session(grant), hold.held_at, describe_holder(hold))
        met = (backend.alias, key.digest)
        if met not in self._met:
            if len(self._met) >= REMEMBERED:
                self._met.clear()
            self._met.add(met)
            return None
        written = self._written.get((backend.alias, backend.listed_as(key), key.name))
        return Note(key) if written is None or now - written >= AGAIN else None

    def _done(self, backend: Backend, notes: Sequence[tuple[Hold, Note]], now: float, answers: list[Noted]) -> None:
        """Remember what was written. Called in the thread that wrote it."""
        with self._guard:
            if len(self._written) >= REMEMBERED:
                self._written.clear()
            for hold, note in notes:
                self._written[backend.alias, backend.listed_as(note.key), note.key.name] = now
                if note.session > 0:
                    self._noted[hold] = note, now
                elif note.session:
                    self._noted.pop(hold, None)
        mine = {backend.listed_as(note.key) for _, note in notes}
        for answer in answers:
            if answer.other and answer.key in mine and (backend.alias, answer.key) not in self._reported:
                self._reported.add((backend.alias, answer.key))
                logger.error(
                    "The locks %r and %r have the same key %s on alias %r and exclude each other. Rename one of them.",
                    answer.name,
                    answer.other,
                    answer.key,
                    backend.alias,
                )


def describe_holder(hold: Hold) -> str:
    """Describe a holder: host:pid:thread or task, and the address that it served at the acquire."""
    return f"{this_process()}:{origin.of(hold.owner, hold.address)}"


def this_process() -> str:
    """host:pid, which is also part of the name of each lock session."""
    return f"{socket.gethostname()}:{os.getpid()}"


namebook = NameBook()
at_fork(Order.THREADS, child=namebook.__init__)  # type: ignore[misc]
