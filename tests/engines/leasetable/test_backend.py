"""Leases: fences that only rise whatever a clock does, waiters of whom none is overtaken, and what both cost."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from django_distlock import BackendUnavailable
from django_distlock.backends.leasetable import backend
from django_distlock.backends.leasetable.statements import KEPT, PLACE
from django_distlock.concurrency import clock
from tests.conftest import PATIENCE, eventually
from tests.engines import statements as counters
from tests.engines.leasetable.conftest import TTL, WAIT, Stores, everywhere

DAY = 86_400


def test_prune_deletes_what_ended_a_day_ago(stores: Stores, a: Any) -> None:
    for number in range(25):
        assert a.release(a.try_acquire(stores.claim(str(number))))
    held = a.try_acquire(stores.claim("held", ttl=2 * KEPT))
    expired = a.try_acquire(stores.claim("expired", ttl=100))
    stores.shift(KEPT - 60)
    a.prune()
    assert stores.kept() == 27
    stores.shift(120)
    assert a.prune() >= 25, "of all aliases"
    assert stores.kept() == 2
    assert a.verify(held)
    assert a.try_acquire(stores.claim("expired")).fence > expired.fence


def grants(stores: Stores, clients: tuple[Any, Any], count: int) -> list[int]:
    """Fences of one name, in the order of the grants; the leases end in every way there is."""
    fences: list[int] = []
    for number in range(count):
        client = clients[number % 2]
        grant = client.try_acquire(stores.claim())
        assert grant is not None, number
        fences.append(grant.fence)
        how = number % 30
        if how not in (3, 7, 11):
            assert client.release(grant)
        match how:
            case 3:
                stores.shift(TTL + 1)  # expires
            case 7:
                stores.shift(KEPT + TTL + 1)  # and so long ago that its row is deleted
                client.prune()
            case 11:
                assert client.break_lock(next(iter(client.inspect())))
            case 15:
                client.close()  # and is opened again
            case 19:
                stores.shift(-3600)  # an administrator sets the clock back
            case 23:  # and forward by ten days, for a while: the fence from the future is not forgotten
                stores.shift(10 * DAY)
            case 24:
                stores.shift(-10 * DAY)
            case 25:
                stores.shift(2 * KEPT)
                client.prune()
    return fences


@everywhere
def test_r21_fences_rise(stores: Stores, a: Any, b: Any) -> None:
    assert all(earlier < later for earlier, later in pairwise(grants(stores, (a, b), 60)))


@everywhere
def test_r4_a_waiter_that_died_before_the_clock_was_set_back_is_passed_over(stores: Stores, a: Any, b: Any) -> None:
    """Its last sign of life is an hour ahead by then. The lock would be free, and nobody could have it."""
    grant, dead = a.try_acquire(stores.claim()), stores.claim()
    b.store.run(clock.now() + PATIENCE, b.store.statements.join, dead, "dead")
    assert a.release(grant)
    assert a.try_acquire(stores.claim()) is None
    stores.shift(-3600)
    grant = a.try_acquire(stores.claim())
    (info,) = a.inspect()
    assert info.waiters == 0
    assert a.release(grant)
    assert b.try_acquire(stores.claim(), WAIT) is not None


@pytest.mark.parametrize("stores", ["file"], indirect=True)
def test_r7_a_waiter_that_cannot_read_its_place_leaves(stores: Stores, a: Any, b: Any, monkeypatch: Any) -> None:
    """Its ticket is written by then. The keepalive thread has it deleted."""
    grant, claim, statements = a.try_acquire(stores.claim()), stores.claim(), b.store.statements
    ask = statements.ask

    def broken(session: Any, statement: str, values: Any) -> Any:
        if statement == PLACE:
            raise sqlite3.OperationalError("disk I/O error")
        return ask(session, statement, values)

    monkeypatch.setattr(statements, "ask", broken)
    with pytest.raises(BackendUnavailable):
        b.try_acquire(claim, WAIT)
    assert stores.tickets()
    b.tick(clock.now())
    eventually(lambda: not stores.tickets(), "a ticket that nobody has")
    assert a.release(grant)
    assert a.try_acquire(stores.claim())


def test_r7_what_a_caller_has_left_is_undone_again_while_the_server_may_be_late(stores: Stores, a: Any, b: Any) -> None:
    """The core calls undo() where a signal's exception has cut off a call. A server may execute it after that."""
    claim = stores.claim()
    a.undo(claim)
    later = b.try_acquire(claim)  # as if it had been on its way
    a.tick(clock.now())
    if stores.store == "file":  # there is no way
        assert b.verify(later)
        a.undo(claim)
    eventually(lambda: not b.verify(later), "it is still held")
    assert a.try_acquire(stores.claim()) is not None


@contextmanager
def counted(stores: Stores, client: Any) -> Any:
    """The first words of the statements in the block, on the lease table."""
    found: Counter[str] = Counter()
    if stores.store == "file":
        connection = client.store.file().cursor.connection
        connection.set_trace_callback(lambda sql: found.update([sql.split()[0]]))
        yield found
        connection.set_trace_callback(None)
        return
    with counters.counted(stores.database) as counts:
        yield found
    for text, calls in counts.items():
        if re.search("django_distlock_(lease|ticket)", text):
            found[text.split()[0]] += calls


def test_statements_of_a_lease(stores: Stores, a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write each way, also of a name that was never used; a renewal is one write, a look or a listing one read."""
    monkeypatch.setattr(backend, "SIGN_OF_LIFE", WAIT)  # on a busy machine statements take longer
    for _ in range(3):  # opens the session and makes the row
        assert a.release(a.try_acquire(stores.claim(), WAIT))
    with counted(stores, a) as found:
        for number in range(10):
            assert a.release(a.try_acquire(stores.claim(), WAIT))
            assert a.release(a.try_acquire(stores.claim(str(number)), WAIT))
    assert found == {"INSERT": 20, "UPDATE": 20}
    grants = [a.try_acquire(stores.claim(f"another {number}")) for number in range(11)]
    with counted(stores, a) as found:
        assert a.extend(grants[0], 10)
        assert a.verify(grants[0])
        assert len(a.inspect()) == 11
    assert found == {"UPDATE": 1, "SELECT": 2}
