"""Keeps a lock until the transactions around it have ended: the next holder sees what was written under it.

``on_commit`` is not enough: it misses rollbacks, failed commits, and closed and killed connections. While a lock is
kept for a transaction, ``commit``, ``rollback``, ``close`` and ``set_autocommit`` are wrapped on that one connection
object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections

from django_distlock import signals
from django_distlock.concurrency import finalizers
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.fork import Order, at_fork

from . import events
from . import open_transactions as transactions_here
from .lock_table import HELD, State, leave_behind, lock_table
from .open_transactions import in_testcase, in_transaction, of_thread, only_testcases, open_transactions
from .release import lose, notify_of_loss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.records import Scope

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.locks")

F = TypeVar("F", bound=Callable[..., Any])
# Notifications to be sent once the transaction is over.
News = list[Callable[[], object]]

# A task binds locks to the connection of the thread that waits for it, and that thread may be running other code.
_watching = threading.Lock()

# The methods of a connection that end its transaction, and those that end a test's part of one. An outermost block
# inside a test is a savepoint.
ENDS = ("commit", "rollback", "close", "set_autocommit")
ENDS_IN_TEST = (*ENDS, "savepoint_rollback", "savepoint_commit")


def _after_fork() -> None:
    global _watching
    _watching = threading.Lock()


at_fork(Order.PRIMITIVES, child=_after_fork)


def choose_scope(backend: Any, opened: list[BaseDatabaseWrapper]) -> Scope:
    """Choose "transaction" only if the one open transaction is on the backend's own database; else "session"."""
    if backend.supports_transaction_scope and len(opened) == 1 and opened[0].alias == backend.database:
        return "transaction"
    return "session"


def on_own_connection(backend: Any, opened: list[BaseDatabaseWrapper]) -> bool:
    """Will the lock belong to a transaction on a connection of this thread?

    False in a task, where the connection is that of the thread that waits for it.
    """
    return choose_scope(backend, opened) == "transaction" and opened[0] is connections[opened[0].alias]


def ours(function: F) -> F:
    """Mark what this package puts on a connection, so that it is not taken for that of other code."""
    function._distlock = True  # type: ignore[attr-defined]
    return function


class TransactionWatch:
    """Watches one connection and releases the locks kept for its transaction once that has ended.

    Its methods of the same names stand in the place of the connection's.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.holds: list[Hold] = []
        # the user has switched autocommit off, and only the user switches it on again
        self.by_hand = not (connection.in_atomic_block and connection.commit_on_exit)
        # the connection's own methods, those that other code has replaced, such as test suites and tracing, and ours
        self.originals: dict[str, Callable[..., Any]] = {}
        self.replaced: dict[str, Any] = {}
        self.wrappers: dict[str, Callable[..., Any]] = {}
        attributes = connection.__dict__
        # the outermost block of the tested code is a savepoint of its test
        in_test = not transactions_here.testcases_count and in_testcase(connection)
        for name in ENDS_IN_TEST if in_test else ENDS:
            present = attributes.get(name)
            if present is not None and getattr(present, "_distlock", None) is not True:
                self.replaced[name] = present
            self.originals[name] = getattr(connection, name)
            attributes[name] = self.wrappers[name] = getattr(self, name)
        attributes["_distlock_watch"] = self

    @ours
    def commit(self) -> None:
        self.originals["commit"]()
        self.finish()

    @ours
    def rollback(self) -> None:
        self.originals["rollback"]()
        self.finish()

    @ours
    def close(self) -> None:
        try:
            self.originals["close"]()
        finally:
            # Django refuses to close in another thread, and ignores it for an in-memory SQLite database
            if self.connection.connection is None or self.connection.closed_in_transaction:
                self.finish()

    @ours
    def set_autocommit(self, *args: Any, **kwargs: Any) -> None:
        self.originals["set_autocommit"](*args, **kwargs)
        if not in_transaction(self.connection):
            self.finish()

    @ours
    def savepoint_rollback(self, sid: str) -> None:
        self.originals["savepoint_rollback"](sid)
        self._end_in_testcase()

    @ours
    def savepoint_commit(self, sid: str) -> None:
        self.originals["savepoint_commit"](sid)
        self._end_in_testcase()

    def listen(self) -> None:
        """Watch each statement of the transaction, because ROLLBACK TO a savepoint may free locks of its scope."""
        wrappers = self.connection.execute_wrappers
        if self._listen not in wrappers:
            wrappers.insert(0, self._listen)  # first: a wrapper of a block is removed from the end

    @ours
    def _listen(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        result = execute(sql, params, many, context)
        # the server's own name for the command, ROLLBACK TO a savepoint included, however it was spelt
        if getattr(context["cursor"], "statusmessage", None) in ("ROLLBACK", "COMMIT"):
            self.recheck()
        return result

    def _end_in_testcase(self) -> None:
        if in_testcase(self.connection) and only_testcases(self.connection):
            self.finish()

    def finish(self) -> None:
        """Release the locks kept for the transaction, which has been committed or rolled back."""
        if finalizers.here.collecting:
            finalizers.later(self.finish)
            return
        ended = self.holds
        news: News = []
        try:
            with _watching:
                self._uninstall()
                ended, self.holds = self.holds, []
            others = open_transactions()
            if self.connection in others:  # Django is still ending it
                others.remove(self.connection)
            self._let_all_go(ended, others, news)
        except BaseException:  # Ctrl-C: the keepalive thread releases what is left
            self.holds = []
            for hold in ended:
                hold.transactions.discard(self)
                leave_behind(hold, hold)
            raise
        finally:
            if news:
                self._notify(news)

    def _let_all_go(self, ended: list[Hold], others: list[BaseDatabaseWrapper], news: News) -> None:
        for number, hold in enumerate(ended):
            try:
                self._let_go(hold, others, news)
            except BaseException:  # the others are released all the same
                self._let_all_go(ended[number + 1 :], others, news)
                raise

    def _let_go(self, hold: Hold, others: list[BaseDatabaseWrapper], news: News) -> None:
        hold.transactions.discard(self)
        if hold.transactions:
            return
        if others and hold.scope == "session" and hold.state is not State.ENDED:
            bind(hold, others)  # they began under the lock and are not committed
        elif others and lock_table.lose(hold, "transaction"):  # the server has freed it with this one
            news.append(partial(notify_of_loss, hold, "transaction"))
        else:
            _give_back(hold, news)

    def _notify(self, news: News) -> None:
        """Notify receivers, but not before the connection is back in autocommit.

        A receiver may use this connection. Before that its first query would begin a transaction while Django is still
        ending the last one.
        """
        connection = self.connection
        if self.by_hand or connection.autocommit or not in_transaction(connection) or in_testcase(connection):
            for notify in news:
                notify()
            return
        original, present = connection.set_autocommit, connection.__dict__.get("set_autocommit")

        @ours
        def set_autocommit(*args: Any, **kwargs: Any) -> None:
            if connection.__dict__.get("set_autocommit") is set_autocommit:
                del connection.__dict__["set_autocommit"]
                if present is not None:
                    connection.__dict__["set_autocommit"] = present
            try:
                original(*args, **kwargs)
            finally:
                for notify in news:
                    notify()

        connection.__dict__["set_autocommit"] = set_autocommit

    def _uninstall(self) -> None:
        attributes = self.connection.__dict__
        if self._listen in self.connection.execute_wrappers:
            self.connection.execute_wrappers.remove(self._listen)
        if attributes.get("_distlock_watch") is self:
            del attributes["_distlock_watch"]
        wrappers, self.wrappers = self.wrappers, {}  # they refer to the watch, and that to them: a circle
        for name, wrapper in wrappers.items():
            # other code may have wrapped our wrapper, which then stays and does nothing
            if attributes.get(name) is wrapper:
                if name in self.replaced:
                    attributes[name] = self.replaced[name]
                else:
                    del attributes[name]

    def recheck(self) -> None:
        """Ask the server which transaction-scoped locks are left.

        ROLLBACK TO a savepoint has freed those acquired after it (R15), a COMMIT by SQL all of them.
        """
        inside = transactions_here.driver_inside(self.connection)
        scoped = [hold for hold in self.holds if hold.scope == "transaction"]
        if not scoped:
            return
        try:
            left = scoped[0].backend.still_held(self.connection, [hold.key for hold in scoped])  # type: ignore[attr-defined]
        except Exception:
            logger.exception("Could not ask which locks a rolled back savepoint has freed; all count as lost.")
            left = set()
        for hold in scoped:
            if hold.key not in left:
                self.holds.remove(hold)
                hold.transactions.discard(self)
                if hold.leases and inside:
                    lose(hold, "savepoint")
                elif hold.leases:
                    lose(hold, "transaction")
                else:  # all its leases were released before, so this is no loss
                    lock_table.end(hold)
                    events.send_held(signals.lock_released, hold)


def _give_back(hold: Hold, news: News) -> None:
    """Release a hold after the last transaction for which it was kept. An error of the engine is not raised, because
    the transaction is over."""
    if hold.scope == "transaction":  # the lock has ended with its transaction
        if lock_table.end(hold, HELD) and signals.lock_released.receivers:
            news.append(partial(events.send_held, signals.lock_released, hold))
        return
    lost = ""
    if not lock_table.start_release(hold):
        return
    try:
        if hold.grant is not None and not (hold.give_fast(hold.grant) or run(hold.give(hold.grant))):
            lost = "stolen"
    except Exception:
        logger.exception("The lock %r could not be released after its transaction.", hold.key.name)
        lost = "unreachable"
    except BaseException:  # an interrupt
        leave_behind(hold, hold)
        raise
    if lost and lock_table.lose(hold, lost, releasing=True):
        news.append(partial(notify_of_loss, hold, lost))
    lock_table.end(hold)
    if hold.lost is None and signals.lock_released.receivers:
        news.append(partial(events.send_held, signals.lock_released, hold))


def bind(hold: Hold, opened: Iterable[BaseDatabaseWrapper]) -> None:
    """Keep ``hold`` until each of these transactions has ended."""
    for connection in opened:
        with _watching:
            watch: TransactionWatch = connection.__dict__.get("_distlock_watch") or TransactionWatch(connection)
            if watch not in hold.transactions:
                watch.holds.append(hold)  # first: the end of the transaction ends it, whatever comes in between
                hold.transactions.add(watch)
                if hold.scope == "transaction":
                    watch.listen()
        if not in_transaction(connection):  # another thread has ended it in between
            watch.finish()


def unbind(hold: Hold) -> None:
    """Stop keeping ``hold`` for transactions."""
    with _watching:
        for watch in hold.transactions:
            watch.holds.remove(hold)
        hold.transactions.clear()


def defer(hold: Hold, by_sql: list[BaseDatabaseWrapper] | None = None) -> bool:
    """Keep ``hold``, whose last Lease was released, while a transaction is open. False if none is.

    ``by_sql``: see :func:`open_transactions`.
    """
    if hold.abandoned:
        return False
    if hold.grant is None or hold.grant.claim.scope == "session":
        opened = open_transactions(by_sql)
        owner = hold.owner
        if owner is not threading.current_thread() and isinstance(owner, threading.Thread):
            opened = [*opened, *of_thread(owner)]  # released by another thread while its owner may still write
        if opened:
            bind(hold, opened)
    if not hold.transactions:
        return False
    lock_table.defer(hold)
    if not hold.transactions:  # another thread has just ended the last one and left the release to this one
        news: News = []
        _give_back(hold, news)
        for notify in news:
            notify()
    return True
