"""The names behind hashed keys, kept in a table where other processes find them.

They are never written during an acquire or a release, and never on a session that holds a lock: a write can hang (a
full disk, a standby that does not confirm), and no lock must be lost for its name. A session to wait on is borrowed,
which holds nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django_distlock.backends.text import printable, readable, short
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation
from django_distlock.records import Noted

from .session import STATEMENT_LIMIT, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_distlock.keys import LockKey
    from django_distlock.records import Note

    from .pool import Sessions

logger = logging.getLogger("django_distlock.backends")

TABLE = "django_distlock_name"
# Names that are kept for one alias; beyond that those not seen for the longest time are deleted.
MOST = 10_000
# One write in this many names is followed by such a deletion.
EVERY = 200
# Rows that one statement deletes.
BATCH = 1000
# The pause after a failure; seconds. It doubles with each further failure: up to AWAY while the server cannot be
# reached or another transaction is in the way, up to REFUSED while the server refuses, as before `migrate`.
FIRST, AWAY, REFUSED = 0.5, 30.0, 600.0

S = TypeVar("S", bound=Session)


class NotesSQL(ABC):
    """The statements in the dialect of one family of servers. Foreign texts are written as hexadecimal digits, which
    need no quoting in any mode of the server."""

    clock: str
    # errors that another attempt may not meet: a deadlock, a lock timeout
    passing: frozenset[str | int]
    # returns how many rows were deleted, where the statement itself does not
    deleted: tuple[bytes, ...] = ()

    @abstractmethod
    def text(self, value: str) -> str:
        """A literal for ASCII text."""

    @abstractmethod
    def key(self, key: LockKey) -> str:
        """The key in the engine's listing."""

    @abstractmethod
    def write(self, rows: str) -> list[bytes]:
        """Insert rows, or bring them up to date; the last statement returns key, alias, name and other."""

    @abstractmethod
    def delete(self, condition: str) -> bytes:
        """Delete BATCH rows; it, or ``deleted``, returns how many."""

    def row(self, note: Note, now: float) -> str:
        """The values of one row. ``since`` is sent as an age: clocks of hosts differ."""
        held = max(0, int((now - note.since) * 1_000_000))
        since = f"{self.clock} - {held}" if note.session > 0 else "0"
        texts = (self.key(note.key), short(note.key.alias), printable(note.key.name), "")
        values = (*map(self.text, texts), self.clock, str(note.session), since, self.text(short(note.holder)))
        return f"({', '.join(values)})"

    def beyond(self, alias: str) -> str:
        """The condition for the names beyond MOST."""
        mine = f"alias = {self.text(short(alias))}"
        return (
            f"{mine} AND seen_at < (SELECT s FROM (SELECT seen_at AS s FROM {TABLE} WHERE {mine} "  # noqa: S608
            f"ORDER BY seen_at DESC LIMIT 1 OFFSET {MOST}) q)"
        )

    def older(self, days: float) -> str:
        """The condition for names that were not seen for ``days``."""
        return f"seen_at < {self.clock} - {int(days * 86_400_000_000)}"


class Notes(Generic[S]):
    """The notes of one alias, written in a separate thread, one batch at a time."""

    def __init__(self, alias: str, sessions: Sessions[S], sql: NotesSQL) -> None:
        self._alias = alias
        self._sessions = sessions
        self._sql = sql
        self._thread: threading.Thread | None = None
        self._rests_until = 0.0
        self._failures = 0  # since something was written
        self._said: set[str] = set()

    def write(self, notes: Sequence[Note], done: Callable[[list[Noted]], object]) -> bool:
        """Start to write, and call ``done`` after it. False if the last batch is still being written, or has just
        failed."""
        if self._thread is not None or clock.now() < self._rests_until:
            return False
        self._thread = threading.Thread(
            target=self._run, args=(notes, done), name=f"distlock-{self._alias}-names", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started: the next tick tries again
            self._thread = None
            return False
        return True

    def _run(self, notes: Sequence[Note], done: Callable[[list[Noted]], object]) -> None:
        try:
            done(self._write({self._sql.key(note.key): note for note in notes}))
            self._failures = 0
        except (SessionDead, StatementTimeout, BackendUnavailable) as error:
            self._rest(AWAY, logging.DEBUG, error)
        except ServerError as error:
            passing = error.code in self._sql.passing
            self._rest(AWAY if passing else REFUSED, logging.DEBUG if passing else logging.WARNING, error)
        except UnsupportedOperation as error:  # a pooler: only locks in transactions work, without sessions
            self._rest(REFUSED, logging.INFO, error)
        except Exception:
            logger.exception("The names of the locks of alias %r could not be kept.", self._alias)
            self._rests_until = clock.now() + REFUSED
        finally:
            self._thread = None

    def _rest(self, most: float, level: int, error: Exception) -> None:
        self._rests_until = clock.now() + min(most, FIRST * 2 ** min(self._failures, 16))
        self._failures += 1
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if reason not in self._said:
            self._said.add(reason)
            logger.log(
                level,
                "The names of the locks of alias %r cannot be kept (%s). Locks of other processes are listed by their "
                "hash. `manage.py migrate` makes the table %s.",
                self._alias,
                reason,
                TABLE,
            )

    def _write(self, notes: dict[str, Note]) -> list[Noted]:
        def statements() -> list[bytes]:
            """The statements contain ages, so they are made when they can be sent."""
            now = clock.now()
            # in one order everywhere, so that two processes that write the same names do not deadlock
            return self._sql.write(", ".join(self._sql.row(notes[key], now) for key in sorted(notes)))

        found = self.run(statements)
        if random.random() * EVERY < len(notes):  # noqa: S311
            self.delete(self._sql.beyond(self._alias))
        return [Noted(*(readable(_text(value)) for value in row)) for row in found]

    def run(self, statements: Callable[[], Sequence[bytes]]) -> list[Any]:
        """Run ``statements``, made once there is a session; the rows of the last one."""
        until = clock.now() + STATEMENT_LIMIT

        async def ask(session: S) -> list[Any]:
            rows: list[Any] = []
            for statement in statements():
                rows = await session.query(statement, until)
            return rows

        return run(self._sessions.aside(ask, until))

    def prune(self, days: float) -> int:
        """Delete names that were not seen for ``days``; returns how many."""
        return self.delete(self._sql.older(days))

    def delete(self, condition: str) -> int:
        """Delete the rows that match ``condition``, in batches; returns how many."""
        total = 0
        while True:
            deleted = int(self.run(lambda: (self._sql.delete(condition), *self._sql.deleted))[0][0])
            total += deleted
            if deleted < BATCH:
                return total


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
