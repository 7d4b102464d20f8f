"""Leases: fences that only rise whatever a clock does, rows that are pruned, and waiters of whom none is overtaken."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from typing import Any

import pytest

from django_distlock import BackendUnavailable
from django_distlock.backends.leasetable.records import GRACE, KEPT
from django_distlock.backends.leasetable.statements import PLACE
from django_distlock.backends.leasetable.wakeups import WakeSockets
from tests.engines.leasetable.stores import TTL, WAIT, Stores, everywhere

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
        match number % 30:
            case 3:
                stores.shift(TTL + 1)  # expires
            case 7:
                stores.shift(KEPT + TTL + 1)  # and so long ago that its row is deleted
                client.prune()
            case 11:
                assert client.break_lock(next(iter(client.inspect())))
            case 15:
                assert client.release(grant)
                client.close()  # and is opened again
            case 19:
                assert client.release(grant)
                stores.shift(-3600)  # an administrator sets the clock back
            case 23:  # and forward by ten days, for a while: the fence from the future is not forgotten
                assert client.release(grant)
                stores.shift(10 * DAY)
            case 24:
                assert client.release(grant)
                stores.shift(-10 * DAY)
            case 25:
                assert client.release(grant)
                stores.shift(2 * KEPT)
                client.prune()
            case _:
                assert client.release(grant)
    return fences


@everywhere
def test_r21_fences_rise(stores: Stores, a: Any, b: Any) -> None:
    assert all(earlier < later for earlier, later in pairwise(grants(stores, (a, b), 60)))


@everywhere
def test_the_clock_may_be_set_back(stores: Stores, a: Any, b: Any) -> None:
    """What was given back is free at once; what is held ends an hour late, and not early."""
    assert a.release(a.try_acquire(stores.claim()))
    stores.shift(-3600)
    assert list(a.inspect()) == []
    grant = b.try_acquire(stores.claim())
    stores.shift(-3600)
    assert a.try_acquire(stores.claim()) is None
    assert b.extend(grant, TTL) is not None
    stores.shift(TTL + 1)
    assert a.try_acquire(stores.claim()) is not None


def test_r4_nobody_overtakes_those_who_wait(stores: Stores, a: Any, b: Any) -> None:
    grant, waiting, late = a.try_acquire(stores.claim()), stores.claim(), stores.claim()
    assert b.try_acquire(waiting, WAIT) is None
    hurried = stores.client()
    assert hurried.try_acquire(stores.claim()) is None
    assert stores.tickets() == 1, "who does not wait takes no ticket"
    assert a.release(grant)
    for client in (hurried, a):
        assert client.try_acquire(stores.claim()) is None, "the lease is free, and somebody waits for it"
    assert a.try_acquire(late, WAIT) is None
    stores.shift(GRACE + 0.1)  # as if the first one was dead
    grant = a.try_acquire(late, WAIT)
    assert grant is not None
    b.withdraw(waiting)
    assert a.release(grant)


def test_r4_a_wake_up_that_is_lost_delays_only(stores: Stores, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder is killed between its release and the wake-up, or is in another network namespace."""
    monkeypatch.setattr(WakeSockets, "wake", lambda self, address: None)
    grant, claim = a.try_acquire(stores.claim()), stores.claim()
    assert b.try_acquire(claim, WAIT) is None
    assert a.release(grant)
    b.wait(claim, 0, 20)
    assert b.try_acquire(claim, WAIT) is not None


@pytest.mark.parametrize("stores", ["file"], indirect=True)
@pytest.mark.parametrize("expected", [False, True])
def test_r7_a_waiter_whose_place_cannot_be_read_keeps_nobody_waiting(
    stores: Stores, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch, expected: bool
) -> None:
    """Its ticket is written by then, in a write of its own or in one with the look at the lease, and goes with it."""
    grant, claim, statements = a.try_acquire(stores.claim()), stores.claim(), b.store.statements
    ask = statements.ask
    if expected:
        statements._note_queue(claim)

    def broken(session: Any, statement: str, values: Any) -> Any:
        if statement == PLACE:
            raise sqlite3.OperationalError("disk I/O error")
        return ask(session, statement, values)

    monkeypatch.setattr(statements, "ask", broken)
    with pytest.raises(BackendUnavailable):
        b.try_acquire(claim, WAIT)
    assert not stores.tickets()
    assert a.release(grant)
    assert a.try_acquire(stores.claim())
