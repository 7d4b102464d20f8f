"""What hashed keys stand for, written down where other processes find it.

Never in the course of an acquire or a release, and never on a session that holds a lock: a write can hang (a full disk,
a standby that does not confirm), and a lock must not be lost for its name. A session from the set for waiting is
borrowed, which holds nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django_distlock.backends.text import printable, readable, short
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step, run
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation
from django_distlock.records import Noted

from .session import STATEMENT_LIMIT, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_distlock.concurrency.flow import Flow
    from django_distlock.keys import LockKey
    from django_distlock.records import Note

    from .pool import Sessions

logger = logging.getLogger("django_distlock.backends")

TABLE = "django_distlock_name"
# Names of one alias that are kept; beyond that those go that were not seen for the longest time.
MOST = 10_000
# That is looked after once in so many names written.
EVERY = 200
# Rows that one statement deletes.
BATCH = 1000
# So long nothing is written after a failure; after each further one twice as long, up to AWAY while the server is not
# reached or somebody is in the way, and up to REFUSED while it refuses, as before `migrate`; seconds.
FIRST, AWAY, REFUSED = 0.5, 30.0, 600.0

S = TypeVar("S", bound=Session)


class NotesSQL(ABC):
    """The statements, as one family of servers wants them. Texts of others are written as hexadecimal digits: they need
    no quoting then, whatever the server's modes are."""

    clock: str
    # errors that another attempt may not meet: a deadlock, a lock timeout
    passing: frozenset[str | int]
    # what returns how many rows were deleted, where the statement itself does not
    deleted: tuple[bytes, ...] = ()

    @abstractmethod
    def text(self, value: str) -> str:
        """A literal for ASCII text."""

    @abstractmethod
    def key(self, key: LockKey) -> str:
        """What the engine's listing calls it."""

    @abstractmethod
    def write(self, rows: str) -> list[bytes]:
        """Insert rows, or bring them up to date; the last statement returns key, alias, name and other."""

    @abstractmethod
    def delete(self, condition: str) -> bytes:
        """Delete BATCH rows; it, or ``deleted``, returns how many."""

    def row(self, note: Note, now: float) -> str:
        """``since`` is told as an age: clocks of hosts differ."""
        held = max(0, int((now - note.since) * 1_000_000))
        since = f"{self.clock} - {held}" if note.session > 0 else "0"
        texts = (self.key(note.key), short(note.key.alias), printable(note.key.name), "")
        values = (*map(self.text, texts), self.clock, str(note.session), since, self.text(short(note.holder)))
        return f"({', '.join(values)})"

    def beyond(self, alias: str) -> str:
        """The condition for what is too much."""
        mine = f"alias = {self.text(short(alias))}"
        return (
            f"{mine} AND seen_at < (SELECT s FROM (SELECT seen_at AS s FROM {TABLE} WHERE {mine} "  # noqa: S608
            f"ORDER BY seen_at DESC LIMIT 1 OFFSET {MOST}) q)"
        )

    def older(self, days: float) -> str:
        """The condition for what was not seen for so many days."""
        return f"seen_at < {self.clock} - {int(days * 86_400_000_000)}"


class Notes(Generic[S]):
    """The notes of one alias, written in a thread of their own, one batch at a time."""

    def __init__(self, alias: str, sessions: Sessions[S], sql: NotesSQL) -> None:
        self._alias = alias
        self._sessions = sessions
        self._sql = sql
        self._thread: threading.Thread | None = None
        self._rests_until = 0.0
        self._failures = 0  # since something was written
        self._said: set[str] = set()

    def write(self, notes: Sequence[Note], done: Callable[[list[Noted]], object]) -> bool:
        """Begin to write, and call ``done``; False if the last batch is not through, or has failed just before."""
        if self._thread is not None or monotonic() < self._rests_until:
            return False
        self._thread = threading.Thread(
            target=self._run, args=(notes, done), name=f"distlock-{self._alias}-names", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no thread to be had: the next look tries again
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
        except UnsupportedOperation as error:  # behind a pooler: transactions need no session, and names get none
            self._rest(REFUSED, logging.INFO, error)
        except Exception:
            logger.exception("The names of the locks of alias %r could not be kept.", self._alias)
            self._rests_until = monotonic() + REFUSED
        finally:
            self._thread = None

    def _rest(self, most: float, level: int, error: Exception) -> None:
        self._rests_until = monotonic() + min(most, FIRST * 2 ** min(self._failures, 16))
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
            """They tell ages: to be made when they can be sent."""
            now = monotonic()
            # in one order everywhere: two processes that write the same names do not meet in a deadlock
            return self._sql.write(", ".join(self._sql.row(notes[key], now) for key in sorted(notes)))

        found = self.run(statements)
        if random.random() * EVERY < len(notes):  # noqa: S311
            self.delete(self._sql.beyond(self._alias))
        return [Noted(*(readable(_text(value)) for value in row)) for row in found]

    def run(self, statements: Callable[[], Sequence[bytes]]) -> list[Any]:
        """The rows of the last one. They are asked for when there is a session."""
        return run(self._statements(statements, monotonic() + STATEMENT_LIMIT))

    def prune(self, days: float) -> int:
        """Delete names that were not seen for so many days; how many."""
        return self.delete(self._sql.older(days))

    def delete(self, condition: str) -> int:
        """Delete in batches what ``condition`` says; how many."""
        total = 0
        while True:
            deleted = int(self.run(lambda: (self._sql.delete(condition), *self._sql.deleted))[0][0])
            total += deleted
            if deleted < BATCH:
                return total

    def _statements(self, statements: Callable[[], Sequence[bytes]], until: float) -> Flow[list[Any]]:
        def ask(session: S) -> Flow[list[Any]]:
            rows: list[Any] = []
            for statement in statements():
                rows = yield Step(session.query, session.aquery, (statement, until))
            return rows

        return (yield from self._sessions.aside(ask, until))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
