"""One lock, the database whose transaction counts, and a rival; and what must hold when the transaction has ended."""

from __future__ import annotations

import contextlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from django_distlock import Lock, advisory_lock, signals
from tests.conftest import eventually
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SIGNALS = {signals.lock_acquired: "acquired", signals.lock_released: "released", signals.lock_lost: "lost"}


class World:
    """``heard``: each time that the lock was acquired, released or lost, as the signals tell it."""

    def __init__(self, using: str, alias: str, name: str, rival: Any) -> None:
        self.using, self.alias, self.name, self.rival = using, alias, name, rival
        # PostgreSQL's own lock on the connection of the transaction, which ends with it
        self.scoped = using == alias == "postgres"
        self.late = 0.0
        self.heard: list[str] = []
        self._waiting: int | None = None  # the rival's question that is not answered yet
        self._number: int | None = None  # of the rival's lock
        self._before = self._after = 0.0
        for signal in SIGNALS:
            signal.connect(self._hear)

    def _hear(self, signal: Any, name: str, **facts: Any) -> None:
        if name == self.name:
            self.heard.append(SIGNALS[signal] + (f" ({facts['reason']})" if "reason" in facts else ""))

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    @property
    def other(self) -> str:
        """A database of which nobody has said anything."""
        return "mariadb" if self.alias != "mariadb" else "postgres"

    def lock(self, suffix: str = "", **options: Any) -> Lock:
        return advisory_lock(self.name + suffix, using=self.using, **{"timeout": 10, **options})

    def write(self) -> None:
        rows.write(self.alias, self.name)

    def written(self) -> int:
        return rows.count(self.alias, self.name)

    def ask(self, sql: str) -> Any:
        return rows.ask(self.alias, sql)

    def is_out(self, suffix: str = "") -> bool:
        """Is the lock refused to the rival?"""
        return bool(self.rival.call("is_out", self.using, self.name + suffix))

    @contextlib.contextmanager
    def busy(self, suffix: str) -> Iterator[None]:
        """The rival holds the lock of that name."""
        number = self.rival.acquire(self.using, self.name + suffix)
        try:
            yield
        finally:
            self.rival.release(number)

    # the steps of a test

    @contextlib.contextmanager
    def transaction(self, seen: int = 1) -> Iterator[None]:
        """Until its end the rival is out; then it gets in and sees so many rows."""
        with transaction.atomic(self.alias):
            yield
            self.still_inside()
        self.check_rival_came_in(seen)
        self.check_returned_once()

    def still_inside(self) -> None:
        """The transaction is open: the rival is refused. From now on it waits."""
        assert self.is_out(), "the rival got the lock before the transaction had ended"
        self.starts_to_wait()
        self._before = time.monotonic()

    def starts_to_wait(self) -> None:
        self._waiting = self.rival.start("wait", self.using, self.name, self.alias)
        assert self.rival.call("has_begun")

    def ended(self) -> None:
        """The transaction has ended just now; called by a way whose end is not the end of its last block."""
        self._after = self._after or time.monotonic()

    def check_rival_came_in(self, seen: int) -> None:
        """The rival got the lock after the end, and saw ``seen`` rows at that moment."""
        if self._number is not None:  # checked by the way itself, before it went on
            return
        self.ended()
        assert self._waiting, "what should run under the lock did not run"
        self._number, granted_at, count = self.rival.result(self._waiting)
        assert granted_at >= self._before, "the rival was in before the end"
        self.late = granted_at - self._after
        assert count == seen, "the rival did not see what was committed under the lock"

    def check_returned_once(self) -> None:
        """The lock was given back once, and the connection is as it was."""
        # by another thread, a moment later, if a generator was closed
        eventually(lambda: set(self.heard) - {"acquired"}, lambda: f"not given back: {self.heard}")
        assert len([what for what in self.heard if what != "acquired"]) == 1, self.heard
        check_connections_are_clean()

    def check_rival_keeps_it(self) -> None:
        """What this connection does next takes nothing away from the rival."""
        with transaction.atomic(self.alias):
            rows.count(self.alias, self.name)
        assert self.lock().try_acquire() is None

    def again(self) -> None:
        """Another round with the same lock."""
        self.rival.release(self._number)
        self._waiting = self._number = None
        self._before = self._after = 0.0

    def leave(self) -> None:
        for signal in SIGNALS:
            signal.disconnect(self._hear)
        self.rival.reset()


def check_connections_are_clean() -> None:
    """Nothing is kept for any connection of this thread, and nothing looks at its statements."""
    for connection in connections.all(initialized_only=True):
        watch = vars(connection).get("_distlock_watch")
        kept = [] if watch is None else [*watch.holds, *watch.pending_signals]
        assert not kept, f"kept for {connection.alias}: {kept}"
        assert not connection.execute_wrappers, f"left on {connection.alias}: {connection.execute_wrappers}"


@contextlib.contextmanager
def swallow(*kinds: type[BaseException], match: str = "") -> Iterator[None]:
    """The end of a transaction by an exception: it must come out, and is then done with."""
    try:
        yield
    except kinds as error:
        if re.search(match, str(error)):
            return
        raise
    raise AssertionError(f"none of {kinds} came out")


def in_thread(function: Callable[[], Any]) -> Any:
    """In another thread, on which stays whatever asgiref or Django leave there."""

    def run() -> Any:
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(30)


@contextlib.contextmanager
def changed(alias: str, **changes: Any) -> Iterator[None]:
    """Other settings for the connection of this thread, which connects anew."""
    connection = connections[alias]
    connection.close()
    before = {key: connection.settings_dict[key] for key in changes}
    connection.settings_dict.update(changes)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


def options(alias: str, **more: Any) -> Any:
    """Other OPTIONS."""
    return changed(alias, OPTIONS={**connections[alias].settings_dict["OPTIONS"], **more})
