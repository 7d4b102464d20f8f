"""Leases: taken, expired, given back, pruned; fences that only rise; and waiters, of whom none is overtaken."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable
from django_distlock.backends.leasetable.records import GRACE, KEPT
from django_distlock.backends.leasetable.statements import PLACE
from django_distlock.backends.leasetable.wakeups import WakeSockets
from tests.engines.leasetable.stores import STORES, TTL, Stores

if TYPE_CHECKING:
    from django_distlock.records import Grant


everywhere = pytest.mark.parametrize("stores", STORES, indirect=True)


@everywhere
def test_r17_one_at_a_time_and_each_knows_whose_it_is(stores: Stores, a: Any, b: Any) -> None:
    grant = a.try_acquire(stores.claim())
    assert a.try_acquire(stores.claim()) is None
    assert b.try_acquire(stores.claim()) is None
    assert b.try_acquire(stores.claim("other")) is not None
    assert a.verify(grant)
    assert b.verify(grant), "a lease is no matter of the session"
    assert a.release(grant)
    assert not a.verify(grant)
    assert not a.release(grant)
    assert not a.release_fast(grant)
    assert a.extend(grant, 10) is None
    assert b.try_acquire(stores.claim()) is not None


@everywhere
def test_r20_an_expired_lease_is_anybody_s_and_not_revived(stores: Stores, a: Any, b: Any) -> None:
    old = a.try_acquire(stores.claim())
    stores.shift(TTL - 1)
    assert b.try_acquire(stores.claim()) is None
    stores.shift(1.001)
    assert a.extend(old, TTL) is None, "R20: never revived, though nobody has taken it"
    assert not a.verify(old)
    new = b.try_acquire(stores.claim())
    assert new.fence > old.fence
    assert not a.release(old)
    assert a.extend(old, TTL) is None
    assert b.verify(new)


def test_an_alias_shows_its_own_locks_only(stores: Stores, a: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert a.try_acquire(stores.claim())
    monkeypatch.setattr(stores, "alias", stores.alias + "2")
    other = stores.client()
    assert list(other.inspect()) == []
    assert other.try_acquire(stores.claim()), "the alias is part of the key"


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
    stores.shift(2 * KEPT)
    assert a.prune() >= 2
    assert stores.kept() == 0


@everywhere
def test_r21_a_fence_from_the_future_is_not_forgotten(stores: Stores, a: Any) -> None:
    """The clock was ten days fast for a while."""
    stores.shift(10 * 86400)
    wrong = a.try_acquire(stores.claim())
    assert a.release(wrong)
    stores.shift(-10 * 86400)
    assert a.release(a.try_acquire(stores.claim()))
    stores.shift(2 * KEPT)
    a.prune()
    assert a.try_acquire(stores.claim()).fence > wrong.fence


def grants(stores: Stores, clients: tuple[Any, Any], count: int) -> list[int]:
    """Fences of one name, in the order of the grants; the leases end in every way there is."""
    fences: list[int] = []
    for number in range(count):
        client = clients[number % 2]
        grant = client.try_acquire(stores.claim())
        assert grant is not None, number
        fences.append(grant.fence)
        match number % 60:
            case 7:
                stores.shift(TTL + 1)  # expires
            case 13:
                stores.shift(KEPT + TTL + 1)  # and so long ago that its row is deleted
                client.prune()
            case 19:
                assert client.break_lock(next(iter(client.inspect())))
            case 23:
                assert client.release(grant)
                client.close()  # and is opened again
            case 31:
                assert client.release(grant)
                stores.shift(-3600)  # an administrator sets the clock back
            case _:
                assert client.release(grant)
    return fences


@everywhere
def test_r21_fences_rise(stores: Stores, a: Any, b: Any) -> None:
    fences = grants(stores, (a, b), 120)
    assert all(earlier < later for earlier, later in pairwise(fences))


@everywhere
def test_the_clock_may_be_set_back(stores: Stores, a: Any, b: Any) -> None:
    """What was given back is free at once; what is held ends an hour late, and not early."""
    first = a.try_acquire(stores.claim())
    assert a.release(first)
    stores.shift(-3600)
    assert list(a.inspect()) == []
    second = b.try_acquire(stores.claim())
    assert second.fence > first.fence
    stores.shift(-3600)
    assert a.try_acquire(stores.claim()) is None
    assert b.extend(second, TTL) is not None
    stores.shift(TTL + 1)
    assert a.try_acquire(stores.claim()).fence > second.fence


WAIT = 1000.0


def queue(stores: Stores, length: int, ttl: float = TTL) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The holder, its grant, and waiters (client, claim) in order of arrival."""
    holder = stores.client()
    grant = holder.try_acquire(stores.claim(ttl=ttl))
    waiters = [(stores.client(), stores.claim()) for _ in range(length)]
    for client, claim in waiters:
        assert client.try_acquire(claim, WAIT) is None
    return holder, grant, waiters


def served(waiters: list[tuple[Any, Any]]) -> tuple[int, Grant] | None:
    """Let all of them ask, the last one first; the numbers of those that got it."""
    for number in reversed(range(len(waiters))):
        client, claim = waiters[number]
        grant = client.try_acquire(claim, WAIT)
        if grant is not None:
            return number, grant
    return None


def test_r4_nobody_overtakes_those_who_wait(stores: Stores) -> None:
    holder, grant, waiters = queue(stores, 1)
    hurried = stores.client()
    assert hurried.try_acquire(stores.claim()) is None
    assert stores.tickets() == 1, "who does not wait takes no ticket"
    assert holder.release(grant)
    for client in (hurried, holder):
        assert client.try_acquire(stores.claim()) is None, "the lease is free, and somebody waits for it"
    late = stores.claim()
    assert holder.try_acquire(late, WAIT) is None
    assert served(waiters) is not None
    holder.withdraw(late)


def test_r4_a_dead_waiter_is_passed_over(stores: Stores) -> None:
    holder, grant, waiters = queue(stores, 2)
    assert holder.release(grant)
    assert served(waiters[1:]) is None
    stores.shift(GRACE + 0.1)
    number, grant = served(waiters[1:]) or (None, None)
    assert number == 0
    assert waiters[1][0].release(grant)


def test_withdraw_gives_back_what_was_granted_unnoticed(stores: Stores) -> None:
    """An interrupt after the grant and before its caller has it."""
    client, other = stores.client(), stores.client()
    claim = stores.claim()
    assert client.try_acquire(claim) is not None
    client.withdraw(claim)
    grant = other.try_acquire(stores.claim())
    assert grant is not None
    client.withdraw(claim)
    assert other.verify(grant)


def test_r4_a_wake_up_that_is_lost_delays_only(stores: Stores, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder is killed between its release and the wake-up, or is in another network namespace."""
    monkeypatch.setattr(WakeSockets, "wake", lambda self, address: None)
    holder, client = stores.client(), stores.client()
    grant = holder.try_acquire(stores.claim())
    claim = stores.claim()
    assert client.try_acquire(claim, WAIT) is None
    assert holder.release(grant)
    client.wait(claim, 0, 20)
    assert client.try_acquire(claim, WAIT) is not None


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
        b.try_acquire(claim, 1000)
    assert not stores.tickets()
    assert a.release(grant)
    assert a.try_acquire(stores.claim())
