"""Acquire, renew, release and break, on each database."""

from __future__ import annotations

import pytest
from django.db import connections

from django_distlock.browser import store
from django_distlock.browser.records import Head, LeaseLost, digest_of
from tests.browserlocks.store.tabs import TTL, Tab, expire, new_id, write
from tests.conftest import eventually


def reason(found: object) -> str:
    assert isinstance(found, LeaseLost), found
    return found.reason


def test_a_free_name_is_taken_and_others_see_who_has_it(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    held = ada.take()
    assert (held.name, held.lease, held.principal, held.label) == (name, ada.lease, "user:ada", "Ada")
    assert held.held
    assert TTL - 5 < held.expires_in <= TTL
    found = bob.wait()
    assert found.holder is not None
    assert (found.holder.label, found.place, found.queued, found.crowded) == ("Ada", 0, True, False)
    assert store.read(alias, [name, "no such name"])[name].lease == ada.lease


def test_asking_again_returns_the_lease_prolonged(alias: str, name: str) -> None:
    """The answer may have been lost; the same id has the same fence."""
    ada = Tab(alias, name)
    first = ada.take(ttl=10)
    again = ada.take(ttl=20)
    assert (first.fence, first.since) == (again.fence, again.since)
    assert again.expires_in > 15


def test_a_fence_begins_at_the_clock_and_fits_a_number_of_javascript(alias: str, name: str) -> None:
    fence = Tab(alias, name).take().fence
    assert 1_700_000_000_000_000 < fence < 2**53


def test_fences_rise_over_release_expiry_break_and_sweep(alias: str, name: str) -> None:
    fences = []
    for end in ("release", "expire", "break", "sweep", "last"):
        tab = Tab(alias, name)
        fences.append(tab.take().fence)
        if end == "release":
            tab.release()
        elif end == "expire":
            expire(alias, name)
        elif end == "break":
            assert store.break_lease(alias, name, tab.fence) is not None
        elif end == "sweep":
            tab.release()
            # a fence that is ahead of the clock keeps its row: SQLite counts milliseconds
            eventually(lambda: store.sweep(alias, 0) == 1, "the row is never swept")
            assert store.read(alias, [name]) == {}
    assert fences == sorted(set(fences))


def test_a_fence_that_is_ahead_of_the_clock_keeps_its_row(alias: str, name: str) -> None:
    """Else the next row of this name might begin below it."""
    ada = Tab(alias, name)
    ada.take()
    ada.release()
    write(alias, "UPDATE django_distlock_browserlock SET fence = fence + 100000000000")
    assert store.sweep(alias, 0) == 0


def test_an_expired_lease_is_never_renewed(alias: str, name: str) -> None:
    """The tab has aborted its work by then, and the next in the queue may be about to take the name."""
    ada = Tab(alias, name)
    ada.take()
    expire(alias, name)
    assert reason(ada.renew()) == "expired"
    assert not store.read(alias, [name])[name].held
    before = ada.fence
    assert ada.take().fence > before


def test_a_lease_with_a_longest_hold_is_renewed_up_to_it(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    assert 4 < ada.take(ttl=60, max_hold=5).expires_in <= 5
    found = ada.renew(60)
    assert not isinstance(found, LeaseLost)
    assert found.expires_in <= 5
    assert ada.take(ttl=60, max_hold=500).expires_in <= 5  # asked again: no new hold
    write(alias, "UPDATE django_distlock_browserlock SET ends_at = 5, expires_at = 5")
    assert reason(ada.renew()) == "max_hold"
    bob.take()
    assert reason(ada.renew()) == "max_hold"


def test_why_a_lease_is_lost(alias: str, name: str) -> None:
    ada, bob, eve = Tab(alias, name), Tab(alias, name, "bob"), Tab(alias, name, "eve")
    assert reason(ada.renew()) == "expired"  # there is no row
    ada.take()
    ada.release()
    assert reason(ada.renew()) == "released"
    bob.take()
    store.break_lease(alias, name, bob.fence)
    assert reason(bob.renew()) == "broken"
    eve.take()
    expire(alias, name)
    ada.take()
    assert reason(eve.renew()) == "expired"
    assert reason(bob.renew()) == "taken"  # the row remembers one lease
    stale, ada.fence = ada.fence, ada.fence - 1
    assert reason(ada.renew()) == "taken"
    ada.fence = stale
    assert not isinstance(ada.renew(), LeaseLost)


def test_a_batch_is_renewed_though_some_are_lost(alias: str) -> None:
    tabs = [Tab(alias, f"piece:{number}") for number in range(5)]
    for tab in tabs:
        tab.take(ttl=10)
    expire(alias, tabs[1].name)
    tabs[3].release()
    found = store.renew(alias, [(tab.name, tab.lease, tab.fence) for tab in tabs], principal="user:ada", ttl=60)
    assert list(found) == [tab.lease for tab in tabs]
    assert [reason(found[tab.lease]) for tab in (tabs[1], tabs[3])] == ["expired", "released"]
    for tab in (tabs[0], tabs[2], tabs[4]):
        lease = found[tab.lease]
        assert not isinstance(lease, LeaseLost)
        assert 55 < lease.expires_in <= 60
    assert store.renew(alias, [], principal="user:ada", ttl=60) == {}


def test_the_id_of_another_user_opens_nothing(alias: str, name: str) -> None:
    ada, eve = Tab(alias, name), Tab(alias, name, "eve")
    ada.take()
    eve.lease, eve.fence = ada.lease, ada.fence
    assert reason(eve.renew()) == "taken"
    assert not eve.release()
    assert eve.lock() is None
    assert eve.wait().holder is not None
    eve.leave()
    bob = Tab(alias, name, "bob")
    bob.wait()
    eve.lease = bob.lease
    eve.leave()
    eve.release()
    assert store.counts(alias, "user:bob") == (0, 1)
    assert store.read(alias, [name])[name].lease == ada.lease


def test_a_release_may_be_repeated(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    assert not ada.release()
    ada.take()
    assert ada.release()
    assert not ada.release()
    bob = Tab(alias, name, "bob")
    bob.take()
    assert not ada.release()
    assert store.read(alias, [name])[name].held


def test_a_release_gives_up_the_waiting_place_too(alias: str, name: str) -> None:
    ada, bob, eve = Tab(alias, name), Tab(alias, name, "bob"), Tab(alias, name, "eve")
    ada.take()
    bob.wait()
    assert eve.wait().place == 1
    bob.release()
    assert eve.wait().place == 0
    eve.leave()
    assert store.counts(alias, "user:eve") == (0, 0)
    ada.leave()
    assert store.counts(alias, "user:ada") == (1, 0)


def test_a_free_name_has_no_name_of_a_person(alias: str, name: str) -> None:
    """Names are personal data."""
    ada = Tab(alias, name)
    ada.take()
    expire(alias, name)
    ada.release()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT principal, label, holder FROM django_distlock_browserlock")
        assert list(cursor.fetchall()) == [("", "", "")]


def test_what_one_user_has_is_listed_and_counted(alias: str) -> None:
    first, second, waiting = Tab(alias, "a"), Tab(alias, "b"), Tab(alias, "c")
    Tab(alias, "c", "bob").take()
    first.take()
    second.take()
    waiting.wait()
    assert {row.name for row in store.held_by(alias, "user:ada")} == {"a", "b"}
    assert store.held_by(alias, "user:Ada") == []
    assert store.counts(alias, "user:ada") == (2, 1)
    assert {row.name for row in store.held(alias)} == {"a", "b", "c"}
    write(alias, "UPDATE django_distlock_browserlock SET since = 1 WHERE name = 'c'")
    assert [row.label for row in store.held(alias, limit=1)] == ["Bob"]
    expire(alias, "a")
    waiting.miss()
    assert store.counts(alias, "user:ada") == (1, 0)


def test_an_operator_ends_the_lease_that_was_shown(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take()
    assert store.break_lease(alias, name, ada.fence - 1) is None
    ended = store.break_lease(alias, name, ada.fence)
    assert ended is not None
    assert ended.label == "Ada"
    assert store.break_lease(alias, name, ada.fence) is None
    bob.take()
    assert store.break_lease(alias, name, ada.fence) is None
    assert store.break_lease(alias, "no such name", 1) is None
    assert store.read(alias, [name])[name].lease == bob.lease


def test_sweeping_spares_what_is_held_and_what_was_lately(alias: str) -> None:
    ada, bob, eve = Tab(alias, "a"), Tab(alias, "b"), Tab(alias, "a", "eve")
    ada.take()
    bob.take()
    bob.release()
    eve.wait()
    assert store.sweep(alias, 3600) == 0
    eve.miss()
    eventually(lambda: store.sweep(alias, 0) == 2 or not store.read(alias, ["b"]), "they stay")
    assert list(store.read(alias, ["a", "b"])) == ["a"]
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM django_distlock_browserticket")
        assert cursor.fetchone() == (0,)


def test_sweeping_goes_on_in_batches(alias: str) -> None:
    for number in range(5):
        tab, waiting = Tab(alias, f"n{number}"), Tab(alias, f"n{number}", "bob")
        tab.take()
        waiting.wait()
        waiting.miss()
        tab.release()
    assert store.sweep(alias, 0, batches=0) == 0
    swept = [0]

    def all_gone() -> bool:  # the clock of SQLite must go on first
        swept[0] += store.sweep(alias, 0, batch=2)
        return swept[0] == 10

    eventually(all_gone, "some stay")


@pytest.mark.parametrize("names", [("Abc", "abc", "Abc ", "ABC", "Äbc", "äbc", "a\u0308bc")], ids=["abc"])
def test_names_are_compared_exactly(alias: str, names: tuple[str, ...]) -> None:
    """MariaDB's usual collation takes most of them for one."""
    tabs = [Tab(alias, each, f"person of {each}") for each in names]
    for tab in tabs:
        tab.take()
    assert {row.name for row in store.held(alias)} == set(names)
    assert store.heads(alias, names) == {tab.name: Head(tab.holder, None) for tab in tabs}


@pytest.mark.parametrize("principals", [("user:Bob", "user:bob", "user:bob ", "user:böb")], ids=["bob"])
def test_users_are_compared_exactly(alias: str, name: str, principals: tuple[str, ...]) -> None:
    tab = Tab(alias, name, principals[0].removeprefix("user:"))
    tab.take()
    for other in principals[1:]:
        assert not store.release(alias, tab.lease, principal=other)
        assert store.lock_for_update(alias, name, tab.lease, tab.fence, other) is None
        assert store.held_by(alias, other) == []


def test_ids_names_and_labels_are_checked() -> None:
    tab = Tab("default", "a")
    tab.lease = "x'; --"
    with pytest.raises(ValueError, match="lease must be"):
        tab.ask()
    with pytest.raises(ValueError, match="principal"):
        Tab("default", "a", "p" * 256).ask()
    for wrong in ("", "n" * 513, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match="name"):
            Tab("default", wrong).ask()
    with pytest.raises(TypeError):
        digest_of(5)  # type: ignore[arg-type]


def test_long_names_and_odd_labels_can_be_stored(alias: str) -> None:
    person = "a\0da\ud800" + "ä" * 300
    found = store.acquire(
        alias, "ä😀" * 256, lease=new_id(), principal="user:1", label=person, ttl=TTL, queue=True, interval=1
    )
    assert not hasattr(found, "place")
    (row,) = store.held(alias)
    assert row.name == "ä😀" * 256
    assert (row.label[:4], len(row.label)) == ("ada?", 255)
