"""One lock, the database whose transaction counts, and a rival; and what must hold when the transaction has ended."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

from django.db import connections

from django_distlock import Lock, advisory_lock
from django_distlock.backends.begin_listener import BeginListener
from django_distlock.manager import transactions
from django_distlock.manager.lock_table import Hold, State
from django_distlock.manager.registry import registry
from tests.manager.transactions import rows
from tests.manager.transactions.rival import Rival, is_out, release, start_waiting
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

# The rival is in this many seconds after the end of the transaction (R11), in 99 of 100 cases; see test_endings.py. A
# single case on a busy machine gets more, but far less than any timeout.
SOON = 0.05
AT_LAST = 1.0
WRAPPED = ("commit", "rollback", "close", "set_autocommit", "savepoint_rollback")


class World:
    def __init__(self, using: str, alias: str, name: str, rival: Rival) -> None:
        self.using, self.alias, self.name, self.rival = using, alias, name, rival
        self.engine_releases = 0
        self.late = 0.0
        self.returned: list[Hold] = []
        self._waiting = self._heard = False
        self._before = self._after = 0.0
        self._patches = contextlib.ExitStack()
        self._count_releases()

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    def lock(self) -> Lock:
        return advisory_lock(self.name, using=self.using, timeout=5)

    def write(self) -> None:
        rows.write(self.alias, self.name)

    def _count_releases(self) -> None:
        """Spy on the deferred release and on the engine's own."""
        backend = registry.entry(self.using).backend
        release_at_engine, release_fast, give_back = backend.release, backend.release_fast, transactions._give_back

        def counted_release(grant: Any) -> bool:
            self.engine_releases += grant.claim.key.name == self.name
            return release_at_engine(grant)

        def counted_fast(grant: Any) -> bool:
            before = self.engine_releases
            released = release_fast(grant)  # which may be release(), and is counted once
            self.engine_releases = before + (released and grant.claim.key.name == self.name)
            return released

        def counted_return(hold: Hold, news: list[Any]) -> None:
            if hold.key.name == self.name:
                self.returned.append(hold)
            give_back(hold, news)

        self._patches.enter_context(mock.patch.object(backend, "release", counted_release))
        self._patches.enter_context(mock.patch.object(backend, "release_fast", counted_fast))
        self._patches.enter_context(mock.patch.object(transactions, "_give_back", counted_return))

    # the steps of a test

    def still_inside(self) -> None:
        """The transaction is open: the rival is refused. From now on it waits."""
        assert is_out(self.rival, self.using, self.name), "the rival got the lock before the transaction had ended"
        start_waiting(self.rival, self.using, self.name, self.alias)
        self._waiting = True
        self._before = time.monotonic()

    def still_inside_but_free(self) -> None:
        """The engine lost the lock: the rival waits for nothing."""
        start_waiting(self.rival, self.using, self.name, self.alias)
        self._waiting = True

    def ended(self) -> None:
        """The transaction has ended just now; called by a way whose end is not the end of its last block."""
        self._after = self._after or time.monotonic()

    def check_rival_came_in(self, seen: int) -> None:
        """The rival got the lock after the end and soon after it, and saw ``seen`` rows at that moment."""
        if self._heard:  # checked by the way itself, before it went on
            return
        self.ended()
        assert self._waiting, "what should run under the lock did not run"
        granted_at, count = self.hear_grant()
        assert granted_at >= self._before, "the rival was in before the end"
        self.late = granted_at - self._after
        within(self.late, AT_LAST, what=f"the rival was in {self.late * 1000:.0f} ms after the end of the transaction")
        assert count == seen, "the rival did not see what was committed under the lock"

    def check_returned_once(self, transaction_scope: bool | None = None) -> None:
        """The lock was given back once, nobody keeps anything, and the connection is as it was."""
        assert len(self.returned) == 1, f"the end of the transaction was noticed {len(self.returned)} times"
        if transaction_scope is None:
            transaction_scope = self.using == "postgres"
        assert self.engine_releases == (0 if transaction_scope else 1)
        assert self.returned[0].state is State.ENDED
        self.check_connection_is_clean()

    def check_connection_is_clean(self, *, locked: bool = False) -> None:
        """``locked``: a lock is held, so that MySQL is listened to, by one wrapper."""
        for connection in connections.all(initialized_only=True):
            left = {"_distlock_watch", *WRAPPED} & set(connection.__dict__)
            assert not left, f"left on {connection.alias}: {left}"
            kinds = [type(wrapper) for wrapper in connection.execute_wrappers]
            expected = [BeginListener] if locked and connection.vendor == "mysql" else []
            assert kinds == expected, f"left on {connection.alias}: {connection.execute_wrappers}"

    def check_rival_keeps_it(self) -> None:
        """What this connection does next takes nothing away from the rival."""
        from django.db import transaction

        with transaction.atomic(self.alias):
            rows.count(self.alias, self.name)
        assert self.lock().try_acquire() is None
        assert len(self.returned) == 1

    def hear_grant(self) -> list[Any]:
        self._heard = True
        answer: list[Any] = self.rival.hear()
        return answer

    def again(self) -> None:
        """Another round with the same lock."""
        release(self.rival)
        self._waiting = self._heard = False
        self._before = self._after = 0.0

    def leave(self) -> None:
        """Leave the rival without a lock and without a question, also after a test that failed."""
        self._patches.close()
        if self._waiting:
            if not self._heard:
                with contextlib.suppress(AssertionError):
                    self.rival.hear()
            with contextlib.suppress(AssertionError):
                release(self.rival)


@contextlib.contextmanager
def swallow(*kinds: type[BaseException]) -> Iterator[None]:
    """The end of a transaction by an exception: it must come out, and is then done with."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"none of {kinds} came out")
