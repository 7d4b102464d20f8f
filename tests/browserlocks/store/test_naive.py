"""The faults, shown on code that looks right, and the same order of events with the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from django_distlock.browser import store
from django_distlock.browser.records import BrowserLease, LeaseLost, Waiting, digest_of, holder_of
from tests.browserlocks.store.tabs import Tab, expire, write
from tests.conftest import eventually
from tests.support.places import READ_COMMITTED, Place, at_the_side

if TYPE_CHECKING:
    from collections.abc import Callable

LOCKS, TICKETS = "django_distlock_browserlock", "django_distlock_browserticket"


def query(alias: str, text: str, *parameters: Any) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(text, parameters)
        return list(cursor.fetchall())


# Tickets alone: who has the first live ticket holds the name.


def take_a_ticket(tab: Tab, arrived: int) -> None:
    holder = holder_of(tab.lease, tab.principal)
    values = (holder, digest_of(tab.name), tab.lease, tab.principal, arrived, 2**60)
    write(tab.alias, f"INSERT INTO {TICKETS} VALUES (%s, %s, %s, %s, %s, %s)", *values)


def has_the_first_ticket(tab: Tab) -> bool:
    alive = f"SELECT lease FROM {TICKETS} WHERE digest = %s AND alive_until > 1 ORDER BY arrived"
    return query(tab.alias, alive, digest_of(tab.name))[0][0] == tab.lease


def come_alive(tab: Tab) -> None:
    write(tab.alias, f"UPDATE {TICKETS} SET alive_until = %s WHERE lease = %s", 2**60, tab.lease)


def test_fault_tickets_alone_let_two_in(alias: str, name: str) -> None:
    """The first waiter sleeps, is passed over, and wakes up with the oldest ticket of all."""
    sleeper, awake = Tab(alias, name), Tab(alias, name, "bob")
    take_a_ticket(sleeper, 1)
    take_a_ticket(awake, 2)
    sleeper.miss()
    assert has_the_first_ticket(awake)
    come_alive(sleeper)
    assert has_the_first_ticket(sleeper)  # and awake is in its section


def test_the_row_lets_one_in(alias: str, name: str) -> None:
    sleeper, awake, holder = Tab(alias, name), Tab(alias, name, "bob"), Tab(alias, name, "eve")
    holder.take()
    sleeper.wait()
    awake.wait()
    holder.release()
    sleeper.miss()
    awake.take()
    come_alive(sleeper)
    assert isinstance(sleeper.ask(), Waiting)


# Look, then write.


def look_then_take(tab: Tab, meanwhile: Callable[[], object]) -> bool:
    ((lease,),) = query(tab.alias, f"SELECT lease FROM {LOCKS} WHERE digest = %s", digest_of(tab.name))
    if lease:
        return False
    meanwhile()
    text = f"UPDATE {LOCKS} SET lease = %s, holder = %s, expires_at = %s WHERE digest = %s"
    write(tab.alias, text, tab.lease, holder_of(tab.lease, tab.principal), 2**60, digest_of(tab.name))
    return True


def a_free_row(alias: str, name: str) -> None:
    tab = Tab(alias, name, "former")
    tab.take()
    tab.release()


def test_fault_look_then_take_lets_two_in(alias: str, name: str) -> None:
    a_free_row(alias, name)
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    assert look_then_take(ada, lambda: at_the_side(Place(alias, READ_COMMITTED), bob.take))
    assert bob.fence  # it was told that it holds the name


def test_the_condition_is_in_the_update(alias: str, name: str) -> None:
    """The same events cannot come in between, so that bob comes just before or just after."""
    a_free_row(alias, name)
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    at_the_side(Place(alias, READ_COMMITTED), bob.take)
    assert isinstance(ada.ask(), Waiting)


# A renewal that looks first.


def look_then_renew(tab: Tab, meanwhile: Callable[[], object]) -> bool:
    ((holder,),) = query(tab.alias, f"SELECT holder FROM {LOCKS} WHERE digest = %s", digest_of(tab.name))
    if holder != holder_of(tab.lease, tab.principal):
        return False
    meanwhile()
    text = f"UPDATE {LOCKS} SET expires_at = %s, lease = %s WHERE digest = %s"
    write(tab.alias, text, 2**60, tab.lease, digest_of(tab.name))
    return True


def test_fault_a_late_renewal_takes_the_name_from_its_new_holder(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take()

    def meanwhile() -> None:
        expire(alias, name)
        assert isinstance(bob.ask(), BrowserLease)

    assert look_then_renew(ada, meanwhile)
    assert store.read(alias, [name])[name].lease == ada.lease  # and bob was told that it holds the name


def test_a_late_renewal_is_refused(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take()
    expire(alias, name)
    assert isinstance(ada.renew(), LeaseLost)
    bob.take()
    assert isinstance(ada.renew(), LeaseLost)
    assert not isinstance(bob.renew(), LeaseLost)


# Fences that count from one.


def naive_fence(alias: str, name: str) -> int:
    found = query(alias, f"SELECT fence FROM {LOCKS} WHERE digest = %s", digest_of(name))
    return found[0][0] + 1 if found else 1


def test_fault_a_fence_that_counts_from_one_comes_back_after_a_sweep(alias: str, name: str) -> None:
    """A write that was delayed for days, with the fence of a lease that is long gone, is taken for a new one."""
    stale = naive_fence(alias, name)
    ada = Tab(alias, name)
    ada.take()
    ada.release()
    write(alias, f"DELETE FROM {LOCKS}")
    assert naive_fence(alias, name) == stale


def test_a_stale_fence_is_refused_after_a_sweep(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    ada.take()
    stale = ada.fence
    ada.release()
    eventually(lambda: store.sweep(alias, 0) == 1, "the row is never swept")
    again = Tab(alias, name, lease=ada.lease)
    assert again.take().fence > stale
    with transaction.atomic(using=alias):
        assert ada.lock() is None
        assert again.lock() is not None
