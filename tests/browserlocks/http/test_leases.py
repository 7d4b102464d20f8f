"""Acquire, wait, renew, release and list over HTTP; and what goes wrong: the database, the body, the settings."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.template import Context, Template, TemplateSyntaxError
from django.urls import reverse

from django_distlock.browser.conf import config
from django_distlock.browser.http import endpoints
from django_distlock.browser.http.actions import HEAD, HIDDEN, TAIL, interval_of, refusal_of
from django_distlock.browser.records import Waiting
from django_distlock.models import BrowserLockRow, BrowserTicket
from tests.browserlocks.http.people import CSRF, LEASES, RENEW, Person, holder_of, new, refusal
from tests.conftest import eventually
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import RequestFactory

pytestmark = pytest.mark.usefixtures("crew")


def test_a_free_lock(ada: Person, grant: str) -> None:
    lease = new()
    responses = [ada.acquire(grant, lease) for _ in range(2)]  # a lost answer is asked for again
    facts = responses[0].json()
    assert [response.status_code for response in responses] == [201, 201]
    assert set(facts) == {"id", "fence", "expires_in"}
    assert (facts["id"], facts["fence"]) == (lease, responses[1].json()["fence"])
    assert 29 < facts["expires_in"] <= 30
    assert ada.acquire(grant).status_code == 409  # another tab of the same user


def test_a_held_lock(ada: Person, bo: Person, grant: str, caplog: pytest.LogCaptureFixture) -> None:
    """A waiter is no incident: Django warns of each answer with 4xx, and a queue would fill the log."""
    ada.take(grant)
    theirs = bo.grant("cart")
    with caplog.at_level(logging.WARNING):
        assert bo.acquire(theirs, queue=False).status_code == 409
        assert not BrowserTicket.rows.exists()
        response = bo.acquire(theirs)
    assert not caplog.records
    assert refusal(response) == (409, {"holder": "Ada", "place": 0, "retry_after": 0.5})
    assert response["Retry-After"] == "1"


def test_visitors_without_an_account(settings: Any) -> None:
    """Also in a project without sessions and users."""
    one, other = Person(), Person()
    lease, fence = one.take(one.grant("cart"))
    assert other.acquire(other.grant("cart")).json()["holder"] == "A visitor without an account"
    assert one.renewed(lease, fence, one.grant("cart"))["expires_in"] > 0
    settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
    visitor = Person()
    grant = visitor.grant("board")
    visitor.take(grant)
    assert Person().acquire(grant).json()["detail"] == "foreign"


@pytest.mark.parametrize(("granted", "wanted", "most"), [(None, None, 30), (5, 60, 5), (60, 7.5, 7.5), (5, 0.01, 1)])
def test_ttl(ada: Person, granted: float | None, wanted: float | None, most: float) -> None:
    """The client says again at each renewal how soon the lock is free if it is killed."""
    grant = ada.grant("cart", **({} if granted is None else {"ttl": granted}))
    body = {} if wanted is None else {"ttl": wanted}
    facts = ada.acquire(grant, **body).json()
    item = {"id": facts["id"], "fence": facts["fence"], "grant": grant, **body}
    renewed = ada.post(RENEW, {"leases": [item]}).json()["leases"][0]
    for found in (facts, renewed):
        assert most - 1 < found["expires_in"] <= most


def test_a_waiter_that_does_not_ask_is_passed_over(ada: Person, bo: Person, grant: str) -> None:
    lease, _ = ada.take(grant)
    theirs, waiters = bo.grant("cart"), [new() for _ in range(3)]
    assert [bo.acquire(theirs, waiter).json()["place"] for waiter in waiters] == [0, 1, 2]
    ticket = BrowserTicket.rows.get(lease=waiters[0])
    assert ticket.alive_until - ticket.arrived == (2 * interval_of(0, hidden=False) + 1) * 1_000_000
    ada.release(lease)
    bo.release(waiters[1])
    assert bo.acquire(theirs, waiters[2]).status_code == 409
    BrowserTicket.rows.filter(lease=waiters[0]).update(alive_until=ticket.arrived)
    assert bo.acquire(theirs, waiters[2]).status_code == 201
    assert bo.acquire(theirs, waiters[0]).json()["place"] == 0


def test_intervals(ada: Person, bo: Person, grant: str) -> None:
    waiting = [interval_of(place, hidden=False) for place in range(1000)]
    assert waiting == sorted(waiting)
    assert (waiting[0], waiting[-1]) == (0.5, TAIL) == (0.5, 15)
    assert sum(1 / interval for interval in waiting) < 100  # requests per second
    assert [interval_of(place, hidden=True) for place in (0, 1, 11, 999)] == [5, 10, HIDDEN, HIDDEN]
    ada.take(grant)
    theirs = bo.grant("cart")
    assert [bo.acquire(theirs, hidden=True).json()["retry_after"] for _ in range(2)] == [5, 10]


def test_who_finds_the_row_busy_and_not_the_lock_asks_again_soon() -> None:
    """Also a hidden tab at the head of the queue, which is told its turn once."""
    hidden = {"holder": None, "place": 0, "queued": True, "interval": 5.0}
    assert refusal_of(Waiting(**hidden))["retry_after"] == 5.0
    assert refusal_of(Waiting(**hidden, crowded=True))["retry_after"] == HEAD


def test_a_batch_is_renewed(ada: Person) -> None:
    """Answered in its order; what is lost does not hinder the others."""
    grants = [ada.grant(f"name {number}", ttl=10 + number % 2) for number in range(6)]
    batch = [(*ada.take(grant), grant) for grant in grants]
    ada.release(batch[3][0])
    BrowserLockRow.rows.filter(name="name 4").update(expires_at=1)
    answers = ada.renew(*batch).json()["leases"]
    assert [answer["id"] for answer in answers] == [lease for lease, _, _ in batch]
    assert [answer.get("lost") for answer in answers] == [None] * 3 + ["released", "expired", None]
    assert [round(answer["expires_in"]) for answer in answers if "expires_in" in answer] == [10, 11, 10, 11]
    assert ada.renew().json() == {"leases": []}


def test_two_leases_of_one_name(ada: Person, grant: str) -> None:
    """A page that holds the second one still believes in the first."""
    old = ada.take(grant)
    ada.release(old[0])
    now = ada.take(grant)
    for batch in ([old, now], [now, old]):
        answers = ada.renew(*[(*lease, grant) for lease in batch]).json()["leases"]
        assert {answer["id"]: "lost" in answer for answer in answers} == {old[0]: True, now[0]: False}


@pytest.mark.parametrize("method", ["post", "delete"])
def test_a_release_frees_the_lock(ada: Person, bo: Person, grant: str, method: str) -> None:
    lease, fence = ada.take(grant)
    path = f"{LEASES}{lease}/release/" if method == "post" else f"{LEASES}{lease}/"
    for _ in range(2):
        assert getattr(ada.client, method)(path).status_code == 204
    assert holder_of("cart") == ""
    assert bo.take(bo.grant("cart"))[1] > fence
    for other in ("short", "x" * 65, "' OR 1=1 --"):
        assert ada.release(other).status_code == 204


def test_the_list_of_ones_own(ada: Person, bo: Person, grant: str) -> None:
    lease, fence = ada.take(grant)
    elsewhere = Person(ada.user)
    other, _ = elsewhere.take(elsewhere.grant("board"))
    bo.take(bo.grant("game"))
    found = ada.leases()
    assert [row["id"] for row in found] == [lease, other]
    assert set(found[0]) == {"id", "name", "fence", "age", "expires_in"}
    assert (found[0]["name"], found[0]["fence"]) == ("cart", fence)


def test_the_tag(ada: Person, rf: RequestFactory) -> None:
    text = ada.client.get("/page/", {"name": "cart"}).content.decode()
    grant = text.split('data-grant="')[1].split('"')[0]
    assert ada.acquire(grant).json()["expires_in"] <= 20
    with pytest.raises(TemplateSyntaxError, match="needs the request"):
        Template("{% load distlock_browser %}{% lock_grant 'cart' %}").render(Context({}))


def test_a_clock_that_is_set_back(ada: Person, bo: Person, settings: Any) -> None:
    """On a server whose time zone has daylight saving one hour of the year occurs twice."""
    settings.DISTLOCK_BROWSER = {"DATABASE": "mariadb"}
    with autumn("mariadb") as clocks:
        try:
            clocks.after()
            grant = ada.grant("cart", ttl=60)
            lease, fence = ada.take(grant)
            clocks.over()
            assert bo.acquire(bo.grant("cart")).status_code == 409
            assert ada.renewed(lease, fence, grant)["expires_in"] > 50
            clocks.before()
            ada.take(ada.grant("board", ttl=2))
            clocks.after()
            grant, lease = bo.grant("board"), new()
            eventually(lambda: bo.acquire(grant, lease).status_code == 201, "it is kept for an hour")
        finally:
            for table in (BrowserLockRow, BrowserTicket):
                table.rows.using("mariadb").all().delete()


# what goes wrong


@pytest.fixture
def dead(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The locks are in a database that nothing answers for."""
    monkeypatch.setitem(connections.settings, "dead", {**connections.settings["postgres"], "PORT": "1"})
    settings.DISTLOCK_BROWSER = {"DATABASE": "dead"}
    endpoints._down.clear()
    yield
    endpoints._down.clear()
    del connections["dead"]


def test_a_database_that_is_down(ada: Person, caplog: pytest.LogCaptureFixture, dead: None, settings: Any) -> None:
    """503 with a time to come back; the log has one entry, and not one for each client, until it was back."""
    grant = ada.grant("cart")
    with caplog.at_level(logging.WARNING, "django_distlock.browser"):
        responses = [ada.acquire(grant), ada.renew((new(), 1, grant)), ada.client.get(LEASES)]
        assert ada.release(new()).status_code == 204
    for response in responses:
        assert refusal(response) == (503, {"reason": "database"})
        assert response["Retry-After"] == "2"
    [logged] = [record for record in caplog.records if record.name == "django_distlock.browser"]
    assert logged.exc_info is not None


WRONG: list[Any] = [None, [], "text", 5, {}, {"grant": 5}, {"grant": "x"}, {"grant": "x", "id": "short"}]
WRONG_WISHES: list[dict[str, Any]] = [
    *({"ttl": ttl} for ttl in ("30", 0, -1, True, float("nan"))),
    *({"id": lease} for lease in ("x" * 65, None, "' OR 1=1", "ünïcödé-id")),
    *({"queue": queue} for queue in ("yes", None)),
    {"hidden": 1},
]
ITEM = {"id": "x" * 8, "grant": "x", "fence": 1}
WRONG_RENEWALS: list[Any] = [
    *(None, {}, [None], ["x"], [{}], [{"id": "x" * 8, "fence": 1}], [{"id": "x" * 8, "grant": "x"}]),
    [{**ITEM, "ttl": "5"}],
    *([{**ITEM, "fence": fence}] for fence in ("1", 1.5, True, None, -1, 2**53)),
]


def test_wrong_bodies(ada: Person, grant: str) -> None:
    good = {"grant": grant, "id": new(), "more": {"x": 1}}
    bodies = [(path, json.dumps(body)) for path in (LEASES, RENEW) for body in WRONG]
    bodies += [(LEASES, json.dumps({**good, **wish})) for wish in WRONG_WISHES]
    bodies += [(RENEW, json.dumps({"leases": leases})) for leases in WRONG_RENEWALS]
    no_json: tuple[Any, ...] = (b"", b"{", b"\xff\xfe", b"[" * 20_000, b'{"leases": ' + b"9" * 5000 + b"}")
    bodies += [(path, body) for path in (LEASES, RENEW) for body in no_json]
    for path, body in bodies:
        response = ada.client.post(path, body, content_type="application/json")
        assert (response.status_code, response.json().get("reason")) == (400, "request"), body
        assert response.json()["detail"]
    assert ada.client.post(LEASES, {"grant": "x", "id": new()}).status_code == 400  # a form
    assert holder_of("cart") == ""
    assert ada.post(LEASES, good).status_code == 201  # members that are not known: a newer script


@pytest.mark.parametrize("atomic", [False, True])
def test_atomic_requests(
    ada: Person, bo: Person, grant: str, settings: Any, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    """No request of the script is in a transaction: what it did is seen at once, and holds no row."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    seen: list[bool] = []

    def permission(request: Any, name: str) -> bool:
        seen.append(transaction.get_connection().in_atomic_block)
        return True

    settings.DISTLOCK_BROWSER = {"PERMISSION": permission}
    lease, fence = ada.take(grant)
    assert ada.renewed(lease, fence, grant)["expires_in"] > 0
    assert bo.acquire(bo.grant("cart")).status_code == 409
    assert ada.leases()
    assert ada.release(lease).status_code == 204
    assert set(seen) == {False}


@pytest.mark.skipif(django.VERSION < (5, 1), reason="LoginRequiredMiddleware came with Django 5.1")
def test_login_required_middleware(settings: Any) -> None:
    """A redirect would tell the script nothing."""
    visitor = Person()
    grant = visitor.grant("cart")
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    lease, fence = visitor.take(grant)
    assert visitor.renewed(lease, fence, grant)["expires_in"] > 0
    assert visitor.client.get(CSRF).status_code == 200
    assert visitor.client.get(f"{LEASES}events/").status_code == 204
    assert visitor.release(lease).status_code == 204


def test_addresses(ada: Person, grant: str, settings: Any) -> None:
    """They end with a slash. Without it nothing is acquired, and nothing fails."""
    lease = new()
    assert reverse("distlock_browser:leases") == LEASES
    assert reverse("distlock_browser:renew") == RENEW
    assert reverse("distlock_browser:release", args=[lease]) == f"{LEASES}{lease}/release/"
    assert reverse("distlock_browser:lease", args=[lease]) == f"{LEASES}{lease}/"
    for method, path in (("put", LEASES), ("get", RENEW), ("delete", CSRF), ("patch", LEASES)):
        response = getattr(ada.client, method)(path)
        assert refusal(response) == (405, {"reason": "method"})
        assert response["Allow"]
    assert ada.acquire(grant, headers={"host": "evil.example"}).status_code == 400
    for append_slash in (False, True):
        settings.APPEND_SLASH = append_slash
        assert ada.post(LEASES.rstrip("/"), {"grant": grant, "id": lease}).status_code in (301, 404)
    assert holder_of("cart") == ""


def refuse(request: Any, name: str) -> bool:
    return False


async def arefuse(request: Any, name: str) -> bool:
    return False


def test_the_setting(settings: Any) -> None:
    settings.DISTLOCK_BROWSER = {"PERMISSION": f"{__name__}.refuse", "MAX_HOLD": 4}
    assert (config().max_hold, config().ttl) == (4, 30)
    wrong: list[tuple[Any, str]] = [
        ([5], "must be a dict"),
        ({"TLL": 5}, "unknown key 'TLL'"),
        ({"TTL": 0}, "TTL must be above zero"),
        ({"TTL": "5"}, "TTL must be a number"),
        ({"MAX_HOLD": 0}, "MAX_HOLD must be above zero"),
        ({"MAX_BODY": None}, "MAX_BODY must be an int"),
        ({"DATABASE": 5}, "DATABASE must be an alias"),
        ({"LABEL": 5}, "LABEL must be a callable"),
        ({"PERMISSION": f"{__name__}.arefuse"}, "PERMISSION must be a plain function"),
        ({"PERMISSION": "no.such.module"}, "PERMISSION: No module named 'no'"),
    ]
    for given, message in wrong:
        settings.DISTLOCK_BROWSER = given
        with pytest.raises(ImproperlyConfigured, match=message):
            config()
