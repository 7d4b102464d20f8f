"""Acquire, queue, renew, release and lock, on each database."""

from __future__ import annotations

from django_distlock.browser.records import BrowserLease, Waiting
from tests.browserlocks.store.tabs import TTL, Tab


def test_a_free_name_is_taken_and_others_see_who_has_it(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    held = ada.take()
    assert (held.name, held.lease, held.principal, held.label) == (name, ada.lease, "user:ada", "Ada")
    assert held.held
    assert TTL - 5 < held.expires_in <= TTL
    found = bob.wait()
    assert found.holder is not None
    assert (found.holder.label, found.place, found.queued, found.crowded) == ("Ada", 0, True, False)


def test_asking_again_returns_the_lease_prolonged(alias: str, name: str) -> None:
    """The answer may have been lost; the same id has the same fence."""
    ada = Tab(alias, name)
    first = ada.take(ttl=10)
    again = ada.take(ttl=20)
    assert (first.fence, first.since) == (again.fence, again.since)
    assert again.expires_in > 15


def test_first_come_first_served(alias: str, name: str) -> None:
    holder, tabs = Tab(alias, name), [Tab(alias, name, f"person{number}") for number in range(5)]
    holder.take()
    assert [tab.wait().place for tab in tabs] == [0, 1, 2, 3, 4]
    assert [tab.wait().place for tab in reversed(tabs)] == [4, 3, 2, 1, 0]
    previous = holder
    for tab in tabs:
        previous.release()
        for other in tabs:
            if other is not tab and other is not previous:
                assert isinstance(other.ask(queue=other.fence == 0), (Waiting, BrowserLease))
        fence = previous.fence
        assert tab.take().fence > fence
        previous = tab
        break


def test_a_fence_begins_at_the_clock_and_fits_a_number_of_javascript(alias: str, name: str) -> None:
    fence = Tab(alias, name).take().fence
    assert 1_700_000_000_000_000 < fence < 2**53
