"""Stores the names of locks for other processes, for engines that keep only a hash of the name.

Once a second the keepalive thread checks the holds of this process. A name is stored once two checks have seen it: it
is held for over a second, or used often. A name made from user data and used once for a moment is not stored. A hold
that two checks have seen is stored with its holder. No acquire and no release executes an extra statement, and the
table is written on a connection that holds no lock: a write can hang, and no lock must be lost for its name.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
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
    from collections.abc import Iterable, Iterator

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
# Names that are remembered at most.
REMEMBERED = 4096
# Names that the table keeps for one alias: beyond that those not seen for the longest time are deleted, after one write
# in TRIM_EVERY.
MOST, TRIM_EVERY = 10_000, 200


class Known(NamedTuple):
    """What is known of a name."""

    # when the hold began that the last check has seen: a number, because a Hold refers to its task
    seen: float
    # the hold that the table names, if any; and when the name was written
    stored: Hold | None = None
    at: float = -math.inf


class Work(NamedTuple):
    """What is to be written for one alias."""

    # each with: is it stored with its holder?
    names: list[tuple[Hold, bool]]
    # what the table names and is over: else a later hold of the session would be mistaken for it
    over: list[Hold]


class NameLog:
    """The names that this process has seen and stored. Its state is changed by single assignments, without a mutex."""

    def __init__(self) -> None:
        self._checked_at = 0.0
        # by alias and digest
        self._known: dict[tuple[str, bytes], Known] = {}
        # the monotonic time of the next write at the earliest; inf during one
        self._next_write: dict[Backend, float] = {}
        self._logged: set[str] = set()

    def check(self, now: float, held: Iterable[Hold]) -> None:
        """Check the holds of this process and store what is due, unless the last check was less than a second ago."""
        if now - self._checked_at < CHECK_EVERY:
            return
        self._checked_at = now
        # of readers that share a session the server sees one: the first
        first: dict[tuple[str, bytes], Hold] = {}
        for hold in sorted(held, key=lambda hold: hold.held_at, reverse=True):
            if hold.backend.keeps_notes and hold.grant is not None:
                first[hold.backend.alias, hold.key.digest] = hold
        due: dict[Backend, Work] = defaultdict(lambda: Work([], []))
        for place, known in list(self._known.items()):
            if known.stored is not None and known.stored is not first.get(place):
                due[known.stored.backend].over.append(known.stored)
        for place, hold in first.items():
            earlier = self._known.get(place)
            self._known[place] = Known(hold.held_at) if earlier is None else earlier._replace(seen=hold.held_at)
            if earlier is not None:
                lasts = earlier.seen == hold.held_at
                if now - earlier.at >= REWRITE_AFTER or (lasts and earlier.stored is not hold):
                    due[hold.backend].names.append((hold, lasts))
        for backend, work in due.items():
            self._start(backend, work, now)
        if len(self._known) > REMEMBERED:
            self._known = {place: known for place, known in self._known.items() if known.stored is not None}

    def write_now(self, hold: Hold) -> None:
        """Store a hold that is known to last, without waiting for two checks."""
        if hold.backend.keeps_notes and hold.grant is not None:
            self._start(hold.backend, Work([(hold, True)], []), clock.now())

    def forget(self) -> None:
        """Forget everything. Called when the backends were replaced and their sessions closed."""
        self.__init__()  # type: ignore[misc]

    def _start(self, backend: Backend, work: Work, now: float) -> None:
        """Write in a thread. What cannot be written now is due again at the next check."""
        if clock.now() < self._next_write.get(backend, 0.0):
            return
        self._next_write[backend] = math.inf
        write = partial(self._write, backend, work, now)
        try:
            threading.Thread(target=write, name=f"distlock-{backend.alias}-names", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self._next_write[backend] = 0.0

    def _write(self, backend: Backend, work: Work, now: float) -> None:
        try:
            ask(backend.notes_database, partial(_store, backend, work))
        except Exception as error:
            self._log(backend, error)
            self._next_write[backend] = clock.now() + REST
            return
        for hold, lasts in [*((hold, False) for hold in work.over), *work.names]:
            place = (backend.alias, hold.key.digest)
            known = self._known.get(place, Known(hold.held_at))
            self._known[place] = known._replace(stored=hold if lasts else None, at=now)
        self._next_write[backend] = 0.0

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


def _store(backend: Backend, work: Work, connection: BaseDatabaseWrapper) -> None:
    def row(hold: Hold, lasts: bool) -> dict[str, Any]:
        return {
            "key": backend.listed_as(hold.key),
            "alias": short(backend.alias),
            "name": printable(hold.key.full_name),
            "seen_at": _since(connection, 0),
            "session": backend.server_session(hold.grant) if lasts and hold.grant else 0,
            "since": _since(connection, clock.now() - hold.held_at) if lasts else 0,
            "holder": short(describe_holder(hold)) if lasts else "",
        }

    # in one order everywhere, so that two processes that write the same names do not deadlock
    rows = sorted((row(*each) for each in work.names), key=lambda values: values["key"])
    with _rows(connection) as table:
        for hold in work.over:
            if hold.grant is not None:
                session = backend.server_session(hold.grant)
                table.filter(key=backend.listed_as(hold.key), session=session).update(session=0)
        target = connection.features.supports_update_conflicts_with_target
        table.bulk_create(
            [table.model(**values) for values in rows],
            update_conflicts=True,
            unique_fields=["key"] if target else None,
            update_fields=["alias", "name", "seen_at", "session", "since", "holder"],
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
    return f"{socket.gethostname()}:{os.getpid()}:{origin.of(hold.owner, hold.address)}"


name_log = NameLog()
at_fork(Order.THREADS, child=name_log.__init__)  # type: ignore[misc]
