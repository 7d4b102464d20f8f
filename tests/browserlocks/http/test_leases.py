"""Acquire, wait, renew, release and list over HTTP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.template import Context, Template, TemplateSyntaxError
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_distlock.browser.grants import read_grant
from django_distlock.browser.http.actions import HIDDEN, HIDDEN_HEAD, TAIL, interval_of
from django_distlock.models import BrowserLockRow, BrowserTicket
from tests.browserlocks.http.people import LEASES, RENEW, Person, holder_of, new

if TYPE_CHECKING:
    from django.test import RequestFactory

pytestmark = pytest.mark.usefixtures("crew")


def test_addresses() -> None:
    lease = new()
    assert reverse("distlock_browser:leases") == LEASES
    assert reverse("distlock_browser:renew") == RENEW
    assert reverse("distlock_browser:release", args=[lease]) == f"{LEASES}{lease}/release/"
    assert reverse("distlock_browser:lease", args=[lease]) == f"{LEASES}{lease}/"


class TestAcquire:
    def test_a_free_lock(self, ada: Person) -> None:
        lease = new()
        response = ada.acquire(ada.grant("cart"), lease)
        assert response.status_code == 201
        facts = response.json()
        assert set(facts) == {"id", "fence", "expires_in"}
        assert facts["id"] == lease
        assert 29 < facts["expires_in"] <= 30
        assert 0 < facts["fence"] < 2**53

    def test_again_with_the_same_id(self, ada: Person) -> None:
        """A lost answer is asked for again."""
        grant, lease = ada.grant("cart"), new()
        fences = {ada.acquire(grant, lease).json()["fence"] for _ in range(3)}
        assert len(fences) == 1

    def test_a_held_lock(self, ada: Person, bo: Person) -> None:
        ada.take(ada.grant("cart"))
        response = bo.acquire(bo.grant("cart"))
        assert response.status_code == 409
        assert response.json() == {"holder": "Ada", "place": 0, "retry_after": 0.5}
        assert response["Retry-After"] == "1"

    def test_another_tab_of_the_same_user(self, ada: Person) -> None:
        grant = ada.grant("cart")
        ada.take(grant)
        assert ada.acquire(grant).status_code == 409

    def test_visitors_without_an_account(self) -> None:
        one, other = Person(), Person()
        lease, fence = one.take(one.grant("cart"))
        assert other.acquire(other.grant("cart")).json()["holder"] == "A visitor without an account"
        assert one.renewed(lease, fence, one.grant("cart"))["expires_in"] > 0

    def test_if_available_keeps_no_place(self, ada: Person, bo: Person) -> None:
        ada.take(ada.grant("cart"))
        assert bo.acquire(bo.grant("cart"), queue=False).status_code == 409
        assert not BrowserTicket.rows.exists()

    @pytest.mark.parametrize(
        ("granted", "wanted", "most"), [(None, None, 30), (5, None, 5), (5, 60, 5), (60, 7.5, 7.5), (5, 0.01, 1)]
    )
    def test_ttl(self, ada: Person, granted: float | None, wanted: float | None, most: float) -> None:
        options = {} if granted is None else {"ttl": granted}
        body = {} if wanted is None else {"ttl": wanted}
        expires_in = ada.acquire(ada.grant("cart", **options), **body).json()["expires_in"]
        assert most - 1 < expires_in <= most

    def test_max_hold(self, ada: Person, settings: Any) -> None:
        assert ada.acquire(ada.grant("one", max_hold=3)).json()["expires_in"] <= 3
        settings.DISTLOCK_BROWSER = {"MAX_HOLD": 4}
        assert ada.acquire(ada.grant("two")).json()["expires_in"] <= 4

    def test_a_waiter_is_no_incident(self, ada: Person, bo: Person, caplog: pytest.LogCaptureFixture) -> None:
        """Django warns of each answer with 4xx: a queue would fill the log."""
        ada.take(ada.grant("cart"))
        grant = bo.grant("cart")
        with caplog.at_level(logging.WARNING):
            assert bo.acquire(grant).status_code == 409
        assert not caplog.records


class TestQueue:
    def test_first_come_first_served(self, ada: Person, bo: Person) -> None:
        lease, _ = ada.take(ada.grant("cart"))
        grant = bo.grant("cart")
        waiters = [new() for _ in range(4)]
        places = [bo.acquire(grant, waiter).json()["place"] for waiter in waiters]
        assert places == [0, 1, 2, 3]
        ada.release(lease)
        assert ada.acquire(ada.grant("cart")).json()["place"] == 4
        served: list[str] = []
        while len(served) < len(waiters):
            # the last ones ask first, and keep their places
            asking = [waiter for waiter in reversed(waiters) if waiter not in served]
            got = [waiter for waiter in asking if bo.acquire(grant, waiter).status_code == 201]
            assert len(got) == 1
            bo.release(got[0])
            served += got
        assert served == waiters

    def test_a_place_that_was_given_up(self, ada: Person, bo: Person) -> None:
        lease, _ = ada.take(ada.grant("cart"))
        grant = bo.grant("cart")
        first, second = new(), new()
        for waiter in (first, second):
            bo.acquire(grant, waiter)
        bo.release(first)
        ada.release(lease)
        assert bo.acquire(grant, second).status_code == 201

    def test_a_waiter_that_does_not_ask_is_passed_over(self, ada: Person, bo: Person) -> None:
        """After two of its intervals and a second; it comes back at the end."""
        lease, _ = ada.take(ada.grant("cart"))
        grant = bo.grant("cart")
        first, second = new(), new()
        for waiter in (first, second):
            bo.acquire(grant, waiter)
        ticket = BrowserTicket.rows.get(lease=first)
        assert ticket.alive_until - ticket.arrived == (2 * interval_of(0, hidden=False) + 1) * 1_000_000
        ada.release(lease)
        assert bo.acquire(grant, second).status_code == 409
        BrowserTicket.rows.filter(lease=first).update(alive_until=ticket.arrived)
        assert bo.acquire(grant, second).status_code == 201
        assert bo.acquire(grant, first).json()["place"] == 0

    def test_intervals(self) -> None:
        waiting = [interval_of(place, hidden=False) for place in range(1000)]
        assert waiting[0] == 0.5
        assert waiting == sorted(waiting)
        assert waiting[-1] == TAIL == 15
        assert sum(1 / interval for interval in waiting) < 100  # requests per second
        assert [interval_of(place, hidden=True) for place in (0, 1, 11, 999)] == [5, 10, HIDDEN, HIDDEN]

    def test_hidden_tabs_ask_seldom(self, ada: Person, bo: Person) -> None:
        ada.take(ada.grant("cart"))
        grant = bo.grant("cart")
        found = [bo.acquire(grant, hidden=True).json()["retry_after"] for _ in range(2)]
        assert found == [HIDDEN_HEAD, 2 * HIDDEN_HEAD]


class TestRenew:
    def test_a_batch(self, ada: Person) -> None:
        """Answered in its order; what is lost does not hinder the others."""
        grants = [ada.grant(f"name {number}", ttl=10 + number % 2) for number in range(6)]
        batch = [(*ada.take(grant), grant) for grant in grants]
        ada.release(batch[3][0])
        response = ada.renew(*batch)
        assert response.status_code == 200
        answers = response.json()["leases"]
        assert [answer["id"] for answer in answers] == [lease for lease, _, _ in batch]
        assert answers[3] == {"id": batch[3][0], "lost": "released"}
        assert [round(answer["expires_in"]) for answer in answers if "expires_in" in answer] == [10, 11, 10, 10, 11]

    def test_a_shorter_ttl(self, ada: Person) -> None:
        """As at the acquire: the client says again how soon the lock is free if it is killed."""
        grant = ada.grant("cart", ttl=20)
        lease, fence = ada.take(grant, ttl=5)
        for wanted, most in ((5, 5), (60, 20), (0.1, 1)):
            item = {"id": lease, "fence": fence, "grant": grant, "ttl": wanted}
            found = ada.post(RENEW, {"leases": [item]}).json()["leases"][0]
            assert most - 1 < found["expires_in"] <= most

    def test_two_leases_of_one_name(self, ada: Person) -> None:
        """A page that holds the second one still believes in the first."""
        grant = ada.grant("cart")
        old = ada.take(grant)
        ada.release(old[0])
        now = ada.take(grant)
        for batch in ([old, now], [now, old]):
            answers = ada.renew(*[(*lease, grant) for lease in batch]).json()["leases"]
            assert {answer["id"]: "lost" in answer for answer in answers} == {old[0]: True, now[0]: False}

    def test_a_wrong_fence(self, ada: Person) -> None:
        grant = ada.grant("cart")
        lease, fence = ada.take(grant)
        assert "lost" in ada.renewed(lease, fence + 1, grant)

    def test_an_expired_lease_is_not_renewed(self, ada: Person, bo: Person) -> None:
        grant = ada.grant("cart")
        lease, fence = ada.take(grant)
        row = BrowserLockRow.rows.get(name="cart")
        BrowserLockRow.rows.update(expires_at=row.since)
        assert ada.renewed(lease, fence, grant) == {"id": lease, "lost": "expired"}
        bo.take(bo.grant("cart"))
        assert ada.renewed(lease, fence, grant)["lost"] in ("expired", "taken")

    def test_never_past_max_hold(self, ada: Person) -> None:
        grant = ada.grant("cart", ttl=10, max_hold=15)
        lease, fence = ada.take(grant)
        row = BrowserLockRow.rows.get(name="cart")
        BrowserLockRow.rows.update(ends_at=row.since + 5_000_000)
        assert ada.renewed(lease, fence, grant)["expires_in"] <= 5

    def test_nothing_to_renew(self, ada: Person) -> None:
        assert ada.renew().json() == {"leases": []}


class TestRelease:
    @pytest.mark.parametrize("method", ["post", "delete"])
    def test_frees_the_lock(self, ada: Person, bo: Person, method: str) -> None:
        lease, fence = ada.take(ada.grant("cart"))
        path = f"{LEASES}{lease}/release/" if method == "post" else f"{LEASES}{lease}/"
        for _ in range(2):
            assert getattr(ada.client, method)(path).status_code == 204
        assert holder_of("cart") == ""
        assert bo.take(bo.grant("cart"))[1] > fence

    def test_of_something_else(self, ada: Person) -> None:
        for lease in ("short", "x" * 65, "' OR 1=1 --", new()):
            assert ada.release(lease).status_code == 204


class TestList:
    def test_ones_own(self, ada: Person, bo: Person) -> None:
        lease, fence = ada.take(ada.grant("cart"))
        elsewhere = Person(ada.user)
        other, _ = elsewhere.take(elsewhere.grant("board"))
        bo.take(bo.grant("game"))
        found = ada.leases()
        assert [row["id"] for row in found] == [lease, other]
        assert set(found[0]) == {"id", "name", "fence", "age", "expires_in"}
        assert (found[0]["name"], found[0]["fence"]) == ("cart", fence)


class TestCost:
    """Statements beside the two with which Django finds out who sends the request."""

    def test_statements(self, ada: Person, bo: Person) -> None:
        grant, lease, waiting = ada.grant("cart"), new(), new()
        theirs = bo.grant("cart")
        bo.release(bo.take(theirs)[0])  # the name has a row from now on
        fence = ada.acquire(grant, lease).json()["fence"]
        ada.release(lease)
        costs = {
            "acquire": lambda: ada.acquire(grant, lease),
            "renew": lambda: ada.renew((lease, fence + 1, grant)),
            "wait": lambda: bo.acquire(theirs, waiting),
            "wait again": lambda: bo.acquire(theirs, waiting, again=True),
            "release": lambda: ada.release(lease),
            "list": ada.leases,
        }
        found = {}
        for what, send in costs.items():
            with CaptureQueriesContext(connection) as queries:
                send()
            found[what] = len(queries) - 2
        assert found == {"acquire": 1, "renew": 1, "wait": 3, "wait again": 2, "release": 2, "list": 1}


class TestTag:
    def test_in_a_page(self, ada: Person) -> None:
        text = ada.client.get("/page/", {"name": "cart"}).content.decode()
        grant = text.split('data-grant="')[1].split('"')[0]
        assert ada.acquire(grant).json()["expires_in"] <= 20

    def test_without_the_request(self, rf: RequestFactory) -> None:
        template = Template("{% load distlock_browser %}{% lock_grant 'cart' %}")
        with pytest.raises(TemplateSyntaxError, match="needs the request"):
            template.render(Context({}))

    def test_the_name_is_what_was_given(self, ada: Person) -> None:
        assert ada.user is not None
        grant = read_grant(ada.grant("cart ☕"), f"user:auth.user:{ada.user.pk}@testserver")
        assert grant.name == "cart ☕"
