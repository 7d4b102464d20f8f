"""What the addresses refuse, and what they do not reveal: one part for each threat."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core import signing
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import connection
from django.http import Http404
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_distlock.browser.endpoints import MOST_RENEWED
from django_distlock.browser.grants import SALT, lock_grant
from django_distlock.models import BrowserTicket, WebLease
from tests.browserlocks.people import CSRF, EVENTS, LEASES, RENEW, Person, Tab, holder_of, new, refusal

pytestmark = pytest.mark.usefixtures("crew")
QUOTA = (429, {"reason": "quota"})


def no_grant(detail: str) -> tuple[int, Any]:
    return 403, {"reason": "grant", "detail": detail}


# grants


def test_a_forged_grant(ada: Person) -> None:
    """The answer is the same for a lock that is held and for one that nobody has heard of."""
    grant = ada.grant()
    head, *signature = grant.split(":")
    forged = [
        *("", "\ud800", head, grant[:-1] + ("A" if grant[-1] != "A" else "B")),
        ":".join([ada.grant("another").split(":")[0], *signature]),
        signing.dumps(signing.loads(grant, salt=SALT), salt="another"),
        signing.dumps("name", salt=SALT),
    ]
    for held in (False, True):
        if held:
            ada.tab().take()
        assert [refusal(ada.ask(text)) for text in forged] == [no_grant("forged")] * len(forged)
        assert WebLease.rows.exists() is held


def test_an_expired_grant(mine: Tab, bo: Person, settings: Any) -> None:
    """No lease outlives it."""
    settings.DISTLOCK_BROWSER = {"GRANT_TTL": 1e-9}
    assert mine.renew() == {"id": mine.lease, "lost": "grant"}
    assert refusal(mine.ask()) == no_grant("expired")
    settings.DISTLOCK_BROWSER = None
    bo.tab().take()


def test_the_grant_of_somebody_else(ada: Person, bo: Person) -> None:
    for thief, stolen in ((bo, ada.grant()), (Person(), Person().grant())):
        assert refusal(thief.ask(stolen)) == no_grant("foreign")
    assert not WebLease.rows.exists()
    theirs = bo.tab("other").take()
    theirs.grant = ada.grant()
    assert theirs.renew() == {"id": theirs.lease, "lost": "logged_out"}
    assert holder_of("other") == theirs.lease  # it ends only leases of its own visitor


def test_the_grant_of_another_name_does_not_renew(ada: Person, mine: Tab) -> None:
    """A permission that is asked for a name must be that of the lease."""
    ends = WebLease.rows.get(name="cart").expires_at
    mine.grant = ada.grant("another")
    assert "lost" in mine.renew()
    assert WebLease.rows.get(name="cart").expires_at == ends


@pytest.mark.parametrize("error", [None, PermissionDenied, Http404, ObjectDoesNotExist])
def test_permission_is_asked_at_each_acquire_and_renewal(ada: Person, mine: Tab, settings: Any, error: Any) -> None:
    """One deleted object must not cost the other leases of the batch."""

    def permit(request: Any, name: str) -> bool:
        if name == "cart" and error is not None:
            raise error
        return name != "cart"

    other = ada.tab("other").take()
    settings.DISTLOCK_BROWSER = {"PERMISSION": permit}
    first, second = ada.renew(mine, other).json()["leases"]
    assert first == {"id": mine.lease, "lost": "permission"}
    assert second["expires_in"] > 0
    assert holder_of() == ""
    assert refusal(mine.ask()) == (403, {"reason": "permission"})


def test_a_name_or_an_audience_that_cannot_be(rf: Any) -> None:
    for name in ("", "x" * 513, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match="name"):
            lock_grant(name, rf.get("/"))
    origins = ("app.example", "https://app.example/", "https://", "ftp://app.example", "*", "null")
    for audience in (*origins, "https://app.example:443", "http://app.example:80", "https://me@app.example"):
        with pytest.raises(ValueError, match="audience"):
            lock_grant("cart", rf.get("/"), audience=audience)


# leases of others


def test_the_lease_of_somebody_else(ada: Person, mine: Tab, bo: Person) -> None:
    """It is not renewed, taken again or released, and is answered as one that never was."""
    answers = set()
    for lease in (mine.lease, new()):
        stolen = Tab(bo, "cart", bo.grant(), lease, mine.fence)
        renewed = json.dumps(stolen.renew()).replace(lease, "*")
        end = bo.release(lease)
        answers.add((renewed, end.status_code, end.content))
    [(renewed, *ended)] = answers
    assert "lost" in renewed
    assert ended == [204, b""]
    Tab(bo, "cart", bo.grant(), mine.lease).wait()
    assert mine.renew()["expires_in"] > 0
    waiting = bo.tab().wait()
    ada.release(waiting.lease)
    assert BrowserTicket.rows.filter(lease=waiting.lease).exists()


def test_no_answer_has_a_foreign_id(mine: Tab, bo: Person) -> None:
    answers = [bo.tab().ask(queue=queue) for queue in (True, False)]
    assert [set(answer.json()) for answer in answers] == [{"holder", "place", "retry_after"}] * 2
    answers += [bo.client.get(path) for path in (LEASES, "/page/?name=cart")]
    assert not [answer for answer in answers if mine.lease in answer.content.decode()]


@pytest.mark.parametrize("another_user", [False, True])
def test_a_log_out_ends_a_lease_at_the_next_beat(ada: Person, mine: Tab, bo: Person, another_user: bool) -> None:
    ada.client.logout()
    if another_user:
        ada.client.force_login(bo.user)
        assert ada.client.get(LEASES).json() == {"leases": []}
    assert mine.renew() == {"id": mine.lease, "lost": "logged_out"}
    if not another_user:
        assert refusal(mine.ask()) == (401, {"reason": "logged_out"})
        bo.tab().take()


# quotas


def test_the_quota_of_leases(ada: Person, bo: Person, settings: Any) -> None:
    """It counts names: the client chooses the ids. And the Host header: ALLOWED_HOSTS lets every port through."""
    settings.DISTLOCK_BROWSER = {"MAX_HELD": 2}
    mine = ada.tab("name 0").take()
    Tab(ada, "name 1", ada.grant("name 1"), mine.lease).take()
    for host in ("testserver", "testserver:81", "testserver.", "TESTSERVER"):
        assert refusal(ada.tab("name 2", host=host).ask(headers={"host": host})) == QUOTA
    mine.take()
    bo.tab("name 2").take()
    mine.release()
    ada.tab("one more").take()


def test_the_quota_of_places(ada: Person, bo: Person, settings: Any) -> None:
    settings.DISTLOCK_BROWSER = {"MAX_WAITING": 2}
    for number in range(3):
        bo.tab(f"name {number}").take()
    waiting = [ada.tab(f"name {number}").wait() for number in range(2)]
    last = ada.tab("name 2")
    assert refusal(last.ask()) == QUOTA
    last.wait(queue=False)
    waiting[0].wait()
    waiting[0].release()
    last.wait()


# bodies


def test_a_body_that_is_too_large(ada: Person, settings: Any) -> None:
    """A long form is refused before it is read: Django's CSRF check would store its files first."""
    settings.DISTLOCK_BROWSER = {"MAX_BODY": 2000}
    release = f"{LEASES}{new()}/release/"
    body = {"grant": ada.grant(), "id": new(), "more": "x" * 2000}
    responses = [ada.post(path, body) for path in (LEASES, RENEW, release)]
    responses.append(Client(enforce_csrf_checks=True).post(release, {"file": "x" * 3000}))
    assert [refusal(response) for response in responses] == [(413, {"reason": "too_large"})] * 4
    assert not WebLease.rows.exists()
    settings.DISTLOCK_BROWSER = {"MAX_BODY": 10**7}
    response = ada.renew(*[ada.tab()] * (MOST_RENEWED + 1))
    assert (response.status_code, response.json()["reason"]) == (400, "request")


# CSRF; the headers are those that browsers and django-cors-headers send
APP = "https://app.example"


@pytest.fixture
def strict(ada: Person) -> Person:
    return Person(ada.user, enforce_csrf_checks=True)


def token_of(person: Person) -> str:
    return str(person.client.get(CSRF).json()["csrf"])


@pytest.mark.parametrize("use_sessions", [False, True])
def test_a_token(mine: Tab, strict: Person, settings: Any, use_sessions: bool) -> None:
    """In the header, or in the form of a beacon; a form is no body of an acquire, because the check has read it."""
    refused = [strict.release(mine.lease), strict.ask(mine.grant), strict.renew(mine)]
    assert [response.status_code for response in refused] == [403] * 3
    assert holder_of() == mine.lease
    mine.release()
    settings.CSRF_USE_SESSIONS = use_sessions
    token = token_of(strict)
    urlencoded = {"data": f"csrfmiddlewaretoken={token}", "content_type": "application/x-www-form-urlencoded"}
    for form in (urlencoded, {"data": {"csrfmiddlewaretoken": token}}):
        mine = strict.tab().take(headers={"X-CSRFToken": token})
        assert strict.release(mine.lease, **form).status_code == 204
        assert holder_of() == ""
    for path in (LEASES, RENEW):
        response = strict.client.post(path, {"csrfmiddlewaretoken": token, "id": new()})
        assert (response.status_code, response.json()["reason"]) == (400, "request")


def test_another_origin_needs_a_grant_that_names_it(strict: Person, settings: Any) -> None:
    """And a grant for another origin is not one for this site."""
    headers = {"X-CSRFToken": token_of(strict), "Origin": APP}
    mine = strict.tab(audience=APP)
    assert strict.ask(mine.grant, headers=headers).status_code == 403  # by the CSRF check
    settings.CSRF_TRUSTED_ORIGINS = [APP, "https://other.example"]
    for other in (strict.tab(), strict.tab(audience="https://other.example")):
        assert refusal(other.ask(headers=headers)) == no_grant("audience")
    mine.take(headers=headers)
    assert strict.renew(mine, headers=headers).json()["leases"][0]["expires_in"] > 0
    strict.release(mine.lease, headers=headers)
    headers["Origin"] = "http://testserver"
    assert refusal(mine.ask(headers=headers)) == no_grant("audience")
    strict.tab().take(headers=headers)


# what is stored and sent


def test_names_and_labels_are_data_and_never_markup(ada: Person, bo: Person, settings: Any) -> None:
    evil = "</p><script>alert(1)</script>\x1b[2J\u202e"
    settings.DISTLOCK_BROWSER = {"LABEL": lambda user: evil + "x" * 10_000}
    page = ada.client.get("/page/", {"name": evil.replace("\x1b", ""), "label": evil}).content.decode()
    assert "<script>" not in page
    ada.tab(evil).take()
    refused, listed = bo.tab(evil).ask(), ada.client.get(LEASES)
    for response in (refused, listed):
        assert (response["Content-Type"], response["X-Content-Type-Options"]) == ("application/json", "nosniff")
    label = refused.json()["holder"]
    assert label.isprintable()
    assert len(label) < 256
    assert listed.json()["leases"][0]["name"] == evil


def test_two_tenants_of_one_project_are_told_apart_by_host(ada: Person) -> None:
    """User 5 here is not user 5 there."""
    here, there = {"host": "one.example"}, {"host": "two.example"}
    mine = ada.tab(**here)
    assert refusal(mine.ask(headers=there)) == no_grant("foreign")
    mine.take(headers=here)
    Tab(ada, "cart", ada.grant(**there), mine.lease).wait(headers=there)
    assert ada.client.get(LEASES, headers=there).json() == {"leases": []}
    ada.release(mine.lease, headers=there)
    assert holder_of() == mine.lease


def test_no_beat_writes_the_session(ada: Person, settings: Any) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    mine = ada.tab()
    Session.objects.update(expire_date=timezone.now() + timedelta(hours=1))
    before = list(Session.objects.values_list("session_key", "session_data", "expire_date"))
    with CaptureQueriesContext(connection) as queries:
        mine.take().renew()
        mine.release()
        response = ada.client.get(LEASES)
    assert not [query for query in queries if "UPDATE" in query["sql"] and "django_session" in query["sql"]]
    assert list(Session.objects.values_list("session_key", "session_data", "expire_date")) == before
    assert "sessionid" not in response.cookies


def test_no_cache_keeps_an_answer_or_a_page_with_a_grant(ada: Person, settings: Any) -> None:
    responses = [ada.tab().ask(), ada.release(new()), ada.ask("forged"), ada.client.put(LEASES)]
    responses += [ada.client.get(path) for path in (LEASES, CSRF, EVENTS)]
    assert {response["Cache-Control"] for response in responses} == {"no-store"}
    before, after = (f"django.middleware.cache.{name}CacheMiddleware" for name in ("Update", "FetchFrom"))
    settings.MIDDLEWARE = [before, *settings.MIDDLEWARE, after]
    assert not [page for page in (ada.client.get("/page/?name=cart") for _ in range(2)) if page.has_header("Age")]
