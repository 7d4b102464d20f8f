"""Waiters of the lease table: in order of arrival, without overtaking, and none is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.backends.leasetable.records import GRACE
from django_distlock.backends.leasetable.wakeups import WakeSockets
from tests.engines.leasetable.stores import TTL, Stores

if TYPE_CHECKING:
    import pytest

    from django_distlock.records import Grant

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
