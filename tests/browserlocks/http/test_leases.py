"""Acquire, wait, renew, release and list over HTTP; and what goes wrong: the database, the body, the settings."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.db import connections, transaction
from django.template import Context, Template, TemplateSyntaxError

from django_distlock.browser import endpoints
from django_distlock.browser.endpoints import interval_of
from django_distlock.leases import queue
from django_distlock.leases.records import Waiting
from django_distlock.models import BrowserTicket, WebLease
from tests.browserlocks.people import CSRF, EVENTS, LEASES, RENEW, Person, Tab, holder_of, new, refusal

pytestmark = pytest.mark.usefixtures("crew")


def test_a_held_lock(mine: Tab, bo: Person, caplog: pytest.LogCaptureFixture) -> None:
    """A waiter is no incident: Django warns of each answer with 4xx, and a queue would fill the log."""
    theirs = bo.tab()
    with caplog.at_level(logging.WARNING):
        theirs.wait(queue=False)
        assert not BrowserTicket.rows.exists()
        response = theirs.ask()
    assert not caplog.records
    assert refusal(response) == (409, {"holder": "Ada", "place": 0, "retry_after": 0.5})
    assert response["Retry-After"] == "1"


def test_visitors_without_an_account(settings: Any) -> None:
    """Also in a project without sessions and users."""
    one = Person().tab().take()
    assert Person().tab().ask().json()["holder"] == "A visitor without an account"
    assert one.renew()["expires_in"] > 0
    settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
    visitor = Person().tab("board").take()
    assert Person().ask(visitor.grant).json()["detail"] == "foreign"


def test_login_required_middleware(settings: Any) -> None:
    """A redirect would tell the script nothing."""
    visitor = Person().tab()
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert visitor.take().renew()["expires_in"] > 0
    assert [visitor.person.client.get(path).status_code for path in (CSRF, EVENTS)] == [200, 204]
    visitor.release()


@pytest.mark.parametrize(("granted", "wanted", "most"), [(None, None, 30), (5, 60, 5), (60, 7.5, 7.5), (5, 0.01, 1)])
def test_ttl(ada: Person, granted: float | None, wanted: float | None, most: float) -> None:
    """The client says again at each renewal how soon the lock is free if it is killed."""
    mine = ada.tab(**({} if granted is None else {"ttl": granted}))
    wish = {} if wanted is None else {"ttl": wanted}
    facts = mine.ask(**wish).json()
    item = {"id": mine.lease, "fence": mine.fence, "grant": mine.grant, **wish}
    WebLease.rows.update(expires_at=2**52)  # a busy machine must not let it end before
    renewed = ada.post(RENEW, {"leases": [item]}).json()["leases"][0]
    assert [most / 2 < found["expires_in"] <= most for found in (facts, renewed)] == [True, True]


def test_intervals(ada: Person, bo: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the row busy, and not the lock, asks again soon: also a hidden tab that is told its turn once."""
    waiting = [interval_of(place, hidden=False) for place in range(1000)]
    assert waiting == sorted(waiting)
    assert (waiting[0], waiting[-1]) == (0.5, 15)
    assert sum(1 / interval for interval in waiting) < 100  # requests per second
    assert [interval_of(place, hidden=True) for place in (0, 1, 11, 999)] == [5, 10, 60, 60]
    ada.tab().take()
    assert [bo.tab().ask(hidden=True).json()["retry_after"] for _ in range(2)] == [5, 10]
    hidden = {"holder": None, "place": 0, "queued": True, "interval": 5.0}
    for crowded, seconds in ((False, 5), (True, 0.5)):
        monkeypatch.setattr(queue, "acquire", lambda *args, c=crowded, **kwargs: Waiting(**hidden, crowded=c))
        assert bo.tab().ask(hidden=True).json()["retry_after"] == seconds


def test_a_batch_is_renewed(ada: Person) -> None:
    """Answered in its order; what is lost does not hinder the others."""
    tabs = [ada.tab(f"name {number}", ttl=10 + 100 * (number % 2)).take() for number in range(6)]
    tabs[3].release()
    WebLease.rows.filter(name="name 4").update(expires_at=1)
    answers = ada.renew(*tabs).json()["leases"]
    assert [answer["id"] for answer in answers] == [tab.lease for tab in tabs]
    assert [answer.get("lost") for answer in answers] == [None] * 3 + ["released", "expired", None]
    assert [answer["expires_in"] > 10 for answer in answers if "expires_in" in answer] == [False, True, False, True]
    assert ada.renew().json() == {"leases": []}


def test_a_release_frees_the_lock(ada: Person, mine: Tab, bo: Person) -> None:
    for lease in (mine.lease, mine.lease, "short", "x" * 65, "' OR 1=1 --"):
        assert ada.release(lease).status_code == 204
        assert holder_of() == ""
    assert bo.tab().take().fence > mine.fence


def test_the_list_of_ones_own(ada: Person, mine: Tab, bo: Person) -> None:
    elsewhere = Person(ada.user).tab("board").take()
    bo.tab("game").take()
    found = ada.client.get(LEASES).json()["leases"]
    assert [row["id"] for row in found] == [mine.lease, elsewhere.lease]
    assert set(found[0]) == {"id", "name", "fence", "age", "expires_in"}
    assert (found[0]["name"], found[0]["fence"]) == ("cart", mine.fence)


def test_the_tag(ada: Person) -> None:
    text = ada.client.get("/page/", {"name": "cart"}).content.decode()
    assert ada.ask(text.split('data-grant="')[1].split('"')[0]).json()["expires_in"] <= 20
    with pytest.raises(TemplateSyntaxError, match="needs the request"):
        Template("{% load distlock_browser %}{% lock_grant 'cart' %}").render(Context({}))


# what goes wrong


def test_a_database_that_is_down(ada: Person, caplog: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with a time to come back; the log has one entry, and not one for each client, until it was back."""
    mine = ada.tab()
    monkeypatch.setitem(connections.settings, "dead", {**connections.settings["postgres"], "PORT": "1"})
    monkeypatch.setattr(endpoints, "_down", set())
    settings.DISTLOCK_BROWSER = {"DATABASE": "dead"}
    with caplog.at_level(logging.WARNING, "django_distlock.browser"):
        responses = [ada.ask(mine.grant), ada.renew(mine), ada.client.get(LEASES)]
        mine.release()
    assert [refusal(response) for response in responses] == [(503, {"reason": "database"})] * 3
    assert {response["Retry-After"] for response in responses} == {"2"}
    [logged] = [record for record in caplog.records if record.name == "django_distlock.browser"]
    assert logged.exc_info is not None
    del connections["dead"]


WRONG = (None, [], "text", 5, {}, {"grant": 5}, {"grant": "x"}, {"grant": "x", "id": "short"})
WRONG_WISHES: tuple[dict[str, Any], ...] = (
    *({"ttl": ttl} for ttl in ("30", 0, -1, True, float("nan"))),
    *({"id": lease} for lease in ("x" * 65, None, "' OR 1=1", "ünïcödé-id")),
    *({"queue": "yes"}, {"queue": None}, {"hidden": 1}),
)
ITEM = {"id": "x" * 8, "grant": "x", "fence": 1}
WRONG_ITEMS = (
    *(None, "x", {}, {"id": "x" * 8, "fence": 1}, {"id": "x" * 8, "grant": "x"}, {**ITEM, "ttl": "5"}),
    *({**ITEM, "fence": fence} for fence in ("1", 1.5, True, None, -1, 2**53)),
)
NO_JSON = (b"", b"{", b"\xff\xfe", b"[" * 20_000, b'{"leases": ' + b"9" * 5000 + b"}")


def test_wrong_bodies(ada: Person) -> None:
    good = {"grant": ada.grant(), "id": new(), "more": {"x": 1}}
    bodies: list[tuple[str, Any]] = [(LEASES, {**good, **wish}) for wish in WRONG_WISHES]
    bodies += [(RENEW, {"leases": leases}) for leases in (None, {}, *([item] for item in WRONG_ITEMS))]
    bodies += [(path, body) for path in (LEASES, RENEW) for body in (*WRONG, *NO_JSON)]
    for path, body in bodies:
        text = body if isinstance(body, bytes) else json.dumps(body)
        response = ada.client.post(path, text, content_type="application/json")
        assert (response.status_code, response.json().get("reason")) == (400, "request"), body
        assert response.json()["detail"]
    assert ada.client.post(LEASES, {"grant": "x", "id": new()}).status_code == 400  # a form
    assert holder_of() == ""
    assert ada.post(LEASES, good).status_code == 201  # members that are not known: a newer script


def test_atomic_requests(ada: Person, bo: Person, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of the script is in a transaction: what it did is seen at once, and holds no row."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    seen: list[bool] = []

    def permission(request: Any, name: str) -> bool:
        seen.append(transaction.get_connection().in_atomic_block)
        return True

    settings.DISTLOCK_BROWSER = {"PERMISSION": permission}
    mine = ada.tab().take()
    assert mine.renew()["expires_in"] > 0
    bo.tab().wait()
    mine.release()
    assert set(seen) == {False}
