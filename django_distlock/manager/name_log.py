"""Stores the names of locks for other processes, for engines that keep only a hash of the name.

Once a second the keepalive thread checks the holds of this process. A name is stored once two checks have seen it: it
is held for over a second, or used often. A name made from user data and used once for a moment is not stored. A hold
that two checks have seen is stored with its holder. No acquire and no release executes an extra statement, and the
table is written on a connection that holds no lock: a write can hang, and no lock must be lost for its name.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import socket
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections
from django.db.models.expressions import RawSQL

from django_distlock.backends.side_connection import ask
from django_distlock.backends.text import printable, short
from django_distlock.concurrency import clock, origin
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import BackendUnavailable
from django_distlock.schema import NOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

    from django_distlock.backends.base import Backend
    from django_distlock.models import LockName

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.backends")

# Seconds between two checks, and after a write that failed.
CHECK_EVERY, REST = 1.0, 60.0
# A name in use is written again after this many seconds, so that pruning by age keeps it.
REWRITE_AFTER = 86_400.0
# Names that are remembered at most, and names that one check writes for one alias at most.
REMEMBERED, BATCH = 4096, 100
# Names that the table keeps for one alias: beyond that those not seen for the longest time are deleted, after one write
# in TRIM_EVERY.
MOST, TRIM_EVERY = 10_000, 200


class Stored(NamedTuple):
    """What the table says of a key: the hold whose holder it names, if any; and when it was written."""

    hold: Hold | None
    at: float


class NameLog:
    """The names that this process has seen and stored. Its state is changed by single assignments, without a mutex."""

    def __init__(self) -> None:
        self._checked_at = 0.0
        # the keys and the holds that the last checks have seen
        self._seen_once: set[tuple[str, bytes]] = set()
        self._last_check: set[Hold] = set()
        # by alias and digest
        self._stored: dict[tuple[str, bytes], Stored] = {}
        self._writers: dict[Backend, threading.Thread] = {}
        self._rests_until: dict[Backend, float] = {}
        self._logged: set[str] = set()

    def check(self, now: float, held: Iterable[Hold]) -> None:
        """Check the holds of this process and store what is due, unless the last check was less than a second ago."""
        if now - self._checked_at < CHECK_EVERY:
            return
        # of readers that share a session the server sees one: the first
        first: dict[tuple[str, bytes], Hold] = {}
        for hold in sorted(held, key=lambda hold: hold.held_at, reverse=True):
            if hold.backend.keeps_notes and hold.grant is not None:
                first[hold.backend.alias, hold.key.digest] = hold
        due: dict[Backend, list[tuple[Hold, bool]]] = defaultdict(list)
        for place, hold in first.items():
            lasts = hold in self._last_check
            if len(due[hold.backend]) < BATCH and self._is_due(place, hold if lasts else None, now):
                due[hold.backend].append((hold, lasts))
        over: dict[Backend, list[Hold]] = defaultdict(list)
        for place, (noted, _) in list(self._stored.items()):
            if noted is not None and noted is not first.get(place):
                over[noted.backend].append(noted)
        self._last_check, self._checked_at = set(first.values()), now
        for backend in due.keys() | over.keys():
            self._start(backend, due[backend], over[backend], now)

    def _is_due(self, place: tuple[str, bytes], lasting: Hold | None, now: float) -> bool:
        stored = self._stored.get(place)
        if stored is not None:
            return now - stored.at >= REWRITE_AFTER or (lasting is not None and lasting is not stored.hold)
        if lasting is not None or place in self._seen_once:
            return True
        if len(self._seen_once) >= REMEMBERED:
            self._seen_once = set()
        self._seen_once.add(place)
        return False

    def write_now(self, hold: Hold) -> None:
        """Store a hold that is known to last, without waiting for two checks."""
        if hold.backend.keeps_notes and hold.grant is not None:
            self._start(hold.backend, [(hold, True)], [], clock.now())

    def forget(self) -> None:
        """Forget everything. Called when the backends were replaced and their sessions closed."""
        self.__init__()  # type: ignore[misc]

    def _start(self, backend: Backend, due: Sequence[tuple[Hold, bool]], over: Sequence[Hold], now: float) -> None:
        """Write in a thread. What cannot be written now is due again at the next check."""
        writer = self._writers.get(backend)
        if not (due or over) or (writer and writer.is_alive()) or clock.now() < self._rests_until.get(backend, 0.0):
            return
        name = f"distlock-{backend.alias}-names"
        self._writers[backend] = threading.Thread(
            target=self._write, args=(backend, due, over, now), name=name, daemon=True
        )
        try:
            self._writers[backend].start()
        except RuntimeError:  # no thread can be started
            del self._writers[backend]

    def _write(self, backend: Backend, due: Sequence[tuple[Hold, bool]], over: Sequence[Hold], now: float) -> None:
        try:
            ask(backend.notes_database, functools.partial(_store, backend, due, over))
        except Exception as error:
            self._rests_until[backend] = clock.now() + REST
            self._log(backend, error)
            return
        stored = self._stored
        if len(stored) >= REMEMBERED:
            stored = self._stored = {place: each for place, each in list(stored.items()) if each.hold is not None}
        for hold in over:
            stored[backend.alias, hold.key.digest] = Stored(None, now)
        for hold, lasts in due:
            stored[backend.alias, hold.key.digest] = Stored(hold if lasts else None, now)

    def _log(self, backend: Backend, error: Exception) -> None:
        reason = one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
        if reason not in self._logged:
            self._logged.add(reason)
            logger.warning(
                "The names of the locks of alias %r cannot be kept (%s). Locks of other processes are listed by their "
                "hash. `manage.py migrate` makes the table for them.",
                backend.alias,
                reason,
            )


@contextmanager
def _rows(connection: BaseDatabaseWrapper) -> Iterator[QuerySet[LockName]]:
    """The table, on a side connection: in this thread, which is its own, it stands for Django's."""
    from django_distlock.models import LockName

    connections[connection.alias] = connection
    try:
        yield LockName.rows.using(connection.alias)
    finally:
        del connections[connection.alias]


def _since(connection: BaseDatabaseWrapper, seconds: float) -> RawSQL:
    """The server's time so many seconds ago, in microseconds: clocks of hosts differ."""
    return RawSQL(f"{NOW[connection.vendor]} - %s", [int(seconds * 1_000_000)])  # noqa: S611 - a constant


def _store(
    backend: Backend, due: Sequence[tuple[Hold, bool]], over: Sequence[Hold], connection: BaseDatabaseWrapper
) -> None:
    def row(hold: Hold, lasts: bool) -> dict[str, Any]:
        return {
            "key": backend.listed_as(hold.key),
            "alias": short(backend.alias),
            "name": printable(hold.key.name),
            "seen_at": _since(connection, 0),
            "session": backend.server_session(hold.grant) if lasts and hold.grant else 0,
            "since": _since(connection, clock.now() - hold.held_at) if lasts else 0,
            "holder": short(describe_holder(hold)) if lasts else "",
        }

    # in one order everywhere, so that two processes that write the same names do not deadlock
    rows = sorted((row(*each) for each in due), key=lambda values: values["key"])
    with _rows(connection) as table:
        if over:  # else a later hold of that session would be mistaken for this one
            sessions = {backend.server_session(hold.grant) for hold in over if hold.grant}
            keys = {backend.listed_as(hold.key) for hold in over}
            table.filter(key__in=keys, session__in=sessions - {0}).update(session=0)
        if rows:
            target = connection.features.supports_update_conflicts_with_target
            table.bulk_create(
                [table.model(**values) for values in rows],
                update_conflicts=True,
                unique_fields=["key"] if target else None,
                update_fields=[field for field in rows[0] if field != "key"],
            )
        if random.random() * TRIM_EVERY < len(rows):  # noqa: S311
            mine = table.filter(alias=short(backend.alias))
            for seen_at in mine.order_by("-seen_at").values_list("seen_at", flat=True)[MOST : MOST + 1]:
                mine.filter(seen_at__lt=seen_at).delete()


def prune(backend: Backend, days: float) -> int:
    """Delete names that were not seen for ``days``; returns how many. BackendUnavailable."""

    def delete(connection: BaseDatabaseWrapper) -> int:
        with _rows(connection) as table:
            return table.filter(seen_at__lt=_since(connection, days * 86_400)).delete()[0]

    try:
        return ask(backend.notes_database, delete)
    except DatabaseError as error:
        raise BackendUnavailable(f"The names of the locks of alias {backend.alias!r}: {error}") from error


def describe_holder(hold: Hold) -> str:
    """Describe a holder: host:pid:thread or task, and the address that it served at the acquire."""
    return f"{this_process()}:{origin.of(hold.owner, hold.address)}"


def this_process() -> str:
    """host:pid, which is also part of the name of each lock session."""
    return f"{socket.gethostname()}:{os.getpid()}"


name_log = NameLog()
at_fork(Order.THREADS, child=name_log.__init__)  # type: ignore[misc]
