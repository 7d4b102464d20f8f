"""Keeps a lock until the transactions around it have ended: the next holder sees what was written under it.

A lock ends with the last of its transactions, also if a Lease of it is still open in the context that ends them.
``on_commit`` is not enough: it misses rollbacks, failed commits, and closed and killed connections. So the methods of a
connection that end its transaction are wrapped when the first lock is kept for it, once for the life of the object.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock import signals
from django_distlock.concurrency import leftovers
from django_distlock.concurrency.fork import Order, at_fork

from . import events
from .lock_table import IN_USE, State, lock_table
from .open_transactions import in_transaction, open_transactions, orphaned
from .owner import alive, current
from .release import finish_release, lose, notify_of_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.records import Scope

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.locks")

# A task binds locks to the connection of the thread that waits for it, and that thread may be running other code.
_mutex = threading.Lock()


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()


at_fork(Order.PRIMITIVES, child=_after_fork)


def choose_scope(backend: Any, opened: list[BaseDatabaseWrapper]) -> Scope:
    """Choose "transaction" only if the one open transaction is on the connection that the backend would use; else
    "session".

    Other code may have put another connection in the place of that one: the lock would end there with its statement. A
    task takes the lock on a session: Django's connections are not for tasks. With DJANGO_ALLOW_ASYNC_UNSAFE the
    transaction of sync code in the thread of an event loop may be on a connection of another thread.
    """
    if not backend.supports_transaction_scope or len(opened) != 1 or asyncio._get_running_loop() is not None:
        return "session"
    (connection,) = opened
    inside = connection.alias == backend.database and connection is connections[backend.database]
    return "transaction" if inside else "session"


def ended_states(hold: Hold) -> tuple[State, ...]:
    """The states in which the end of its transaction, in this context, ends ``hold``.

    A block that is open in another context goes on: a task took its lock while the thread of its ORM calls ran the call
    of another task, and that call's transaction is not around it. On an event loop this is called for a transaction
    that another thread has ended: see :func:`bind`.
    """
    if hold.scope == "transaction":
        return IN_USE
    on_loop = asyncio._get_running_loop() is not None
    elsewhere = on_loop or (alive(hold.owner) and hold.owner is not current())
    return (State.DEFERRED,) if elsewhere else IN_USE


class TransactionWatch:
    """Releases the locks kept for the transaction of one connection once that has ended."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.holds: list[Hold] = []
        # what receivers are to be told once they may use the connection
        self.pending_signals: deque[Callable[[], object]] = deque()
        # the user has switched autocommit off, and only the user switches it on again
        self.manual_autocommit = False
        self._follow("commit", self.ended)
        self._follow("rollback", self.ended)
        self._follow("close", self._closed, always=True)
        self._follow("set_autocommit", self._maybe_ended, always=True)
        self._follow("savepoint_rollback", self._recheck)

    def _follow(self, name: str, react: Callable[[], None], *, always: bool = False) -> None:
        """Call ``react()`` after the connection's method ``name`` if it has succeeded, or ``always``."""
        method = getattr(self.connection, name)

        def followed(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except BaseException:
                if always and (self.holds or self.pending_signals):
                    react()
                raise
            if self.holds or self.pending_signals:
                react()
            return result

        self.connection.__dict__[name] = followed

    def _closed(self) -> None:
        # Django refuses to close in another thread, and ignores it for an in-memory SQLite database
        if self.connection.connection is None or self.connection.closed_in_transaction:
            self.ended()

    def _maybe_ended(self) -> None:
        if not in_transaction(self.connection):
            self.ended()

    @property
    def orphaned(self) -> bool:
        """Has the thread of the transaction ended?"""
        return orphaned(self.connection)

    def end_orphan(self) -> None:
        """Close the connection, as the garbage collector would if no lock referred to it."""
        self.connection.inc_thread_sharing()
        self.connection.close()

    def ended(self) -> None:
        """Release the locks kept for the transaction, which has been committed or rolled back."""
        others = [other for other in open_transactions() if other is not self.connection]  # Django is still ending it
        if isinstance(sys.exc_info()[1], GeneratorExit):  # another thread does it: see concurrency/leftovers.py
            holds, self.holds = self.holds, []
            started = [hold for hold in holds if hold.state in ended_states(hold) and hold.transactions == {self}]
            for hold in started:
                hold.state = State.RELEASING  # whoever asks for it meanwhile waits, also its own context
            leftovers.leave(partial(self._release_all, started, others, started=True))
            # The others may be released by another thread just now: the mutex of the table decides who ends them.
            rest = [hold for hold in holds if hold not in started]
            leftovers.leave(partial(self._release_all, rest, others, started=False))
        else:
            with _mutex:
                holds, self.holds = self.holds, []
            self._release_all(holds, others, started=False)

    def _release_all(self, holds: list[Hold], others: list[BaseDatabaseWrapper], started: bool) -> None:
        """``holds``: what was kept for the transaction. ``others``: the other transactions of the thread that has ended
        it. ``started``: has the release of ``holds`` begun?"""
        try:
            for hold in holds:
                self._release_or_move(hold, others, started)
        except BaseException:  # Ctrl-C: the keepalive thread releases what is left
            for hold in holds:
                hold.transactions.discard(self)
                kept = hold.state is State.HELD and State.HELD not in ended_states(hold)
                if not (hold.transactions or kept or hold.state is State.ENDED):
                    again, hold.state = hold.state is State.RELEASING, State.RELEASING
                    leftovers.leave(partial(finish_release, hold, again))
            raise
        finally:
            # a receiver may use this connection: while Django is still ending the transaction, its first query would
            # begin another one
            if self.manual_autocommit or not in_transaction(self.connection):
                self._send_signals()

    def _send_signals(self) -> None:
        while self.pending_signals:
            try:
                send = self.pending_signals.popleft()
            except IndexError:  # another thread sends the last one
                return
            send()

    def _release_or_move(self, hold: Hold, others: list[BaseDatabaseWrapper], started: bool) -> None:
        hold.transactions.discard(self)
        if hold.transactions:
            return
        if others and hold.scope == "session" and hold.state is not State.ENDED:
            if started:
                hold.state = State.DEFERRED
            bind(hold, others)  # they began under the lock and are not committed
        elif others and lock_table.lose(hold, "transaction", releasing=started):  # the server has freed it, too
            self.pending_signals.append(partial(notify_of_loss, hold, "transaction"))
        elif started or lock_table.start_release(hold, ended_states(hold)):
            finish_release(hold, again=False, tell=self.pending_signals.append)

    def _recheck(self) -> None:
        """Ask the server which locks of the transaction are left: the rollback of a savepoint has freed those that were
        acquired after it (R15)."""
        scoped = [hold for hold in self.holds if hold.scope == "transaction"]
        if not scoped:
            return
        try:
            left = scoped[0].backend.still_held(self.connection, [hold.key for hold in scoped])  # type: ignore[attr-defined]
        except Exception:
            logger.exception("Could not ask which locks a rolled back savepoint has freed; all count as lost.")
            left = set()
        for hold in scoped:
            if hold.key not in left and self._forget(hold):
                if hold.leases:
                    lose(hold, "savepoint")
                else:  # all its leases were released before, so this is no loss
                    lock_table.end(hold)
                    events.send_held(signals.lock_released, hold)

    def _forget(self, hold: Hold) -> bool:
        """False if another thread has just ended the transaction, and so releases ``hold``."""
        with _mutex:
            if hold not in self.holds:
                return False
            self.holds.remove(hold)
            hold.transactions.discard(self)
            return True


def bind(hold: Hold, opened: Iterable[BaseDatabaseWrapper]) -> None:
    """Keep ``hold`` until each of these transactions has ended."""
    for connection in opened:
        with _mutex:
            watch = connection.__dict__.get("_distlock_watch")
            if watch is None:
                watch = connection.__dict__["_distlock_watch"] = TransactionWatch(connection)
            if watch not in hold.transactions:
                watch.manual_autocommit = not (connection.in_atomic_block and connection.commit_on_exit)
                watch.holds.append(hold)  # first: the end of the transaction ends it, whatever comes in between
                hold.transactions.add(watch)
        if not in_transaction(connection):  # another thread has ended it in between
            watch.ended()


def defer(hold: Hold) -> bool:
    """Keep ``hold``, whose last Lease was released, while a transaction is open. False if none is."""
    opened = open_transactions(hold.owner)  # if another thread releases it, the owner may still write
    if opened and hold.scope == "session":
        bind(hold, opened)
    return bool(hold.transactions) and lock_table.defer(hold)
