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

from django_distlock.browser.grants import SALT, lock_grant
from django_distlock.browser.http.actions import MOST_RENEWED
from django_distlock.models import BrowserLockRow, BrowserTicket
from tests.browserlocks.http.people import CSRF, EVENTS, LEASES, RENEW, Person, holder_of, new, refusal

pytestmark = pytest.mark.usefixtures("crew")


# grants


def test_a_forged_grant(ada: Person, grant: str) -> None:
    """The answer is the same for a lock that is held and for one that nobody has heard of."""
    head, *signature = grant.split(":")
    forged = [
        *("", "\ud800", head, grant[:-1] + ("A" if grant[-1] != "A" else "B")),
        ":".join([ada.grant("another").split(":")[0], *signature]),
        signing.dumps(signing.loads(grant, salt=SALT), salt="another"),
        signing.dumps(["n", "s", "u"], salt=SALT),
    ]
    for take in (False, True):
        if take:
            ada.take(grant)
        for text in forged:
            assert refusal(ada.acquire(text)) == (403, {"reason": "grant", "detail": "forged"}), text
        assert BrowserLockRow.rows.exists() is take


def test_an_expired_grant(ada: Person, bo: Person, grant: str) -> None:
    """No lease outlives it."""
    lease, fence = ada.take(grant)
    old = signing.dumps({**signing.loads(grant, salt=SALT), "u": 1}, salt=SALT)
    assert ada.renewed(lease, fence, old) == {"id": lease, "lost": "grant"}
    bo.take(bo.grant("cart"))
    assert refusal(ada.acquire(old)) == (403, {"reason": "grant", "detail": "expired"})


def test_the_grant_of_somebody_else(bo: Person, grant: str) -> None:
    visitor, other = Person(), Person()
    for thief, stolen in ((bo, grant), (other, visitor.grant("cart"))):
        assert refusal(thief.acquire(stolen)) == (403, {"reason": "grant", "detail": "foreign"})
    assert not BrowserLockRow.rows.exists()
    theirs = bo.grant("other")
    lease, fence = bo.take(theirs)
    assert bo.renewed(lease, fence, grant) == {"id": lease, "lost": "logged_out"}
    assert holder_of("other") == lease  # it ends only leases of its own visitor


def test_the_grant_of_another_name_does_not_renew(ada: Person, grant: str) -> None:
    """A permission that is asked for a name must be that of the lease."""
    lease, fence = ada.take(grant)
    ends = BrowserLockRow.rows.get(name="cart").expires_at
    assert "lost" in ada.renewed(lease, fence, ada.grant("another"))
    assert BrowserLockRow.rows.get(name="cart").expires_at == ends


def test_a_secret_key_that_was_replaced(ada: Person, grant: str, settings: Any) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    ada.take(grant)


def test_a_request_that_is_replayed(ada: Person, grant: str) -> None:
    """It gets a new fence, and what had the old one is refused; after a log-out it gets nothing."""
    lease, fence = ada.take(grant)
    ada.release(lease)
    again = ada.acquire(grant, lease)
    assert again.status_code == 201
    assert again.json()["fence"] > fence
    assert "lost" in ada.renewed(lease, fence, grant)
    ada.client.logout()
    assert refusal(ada.acquire(grant)) == (401, {"reason": "logged_out"})


@pytest.mark.parametrize("error", [None, PermissionDenied, Http404, ObjectDoesNotExist])
def test_permission_is_asked_at_each_acquire_and_renewal(ada: Person, grant: str, settings: Any, error: Any) -> None:
    """One deleted object must not cost the other leases of the batch."""

    def permit(request: Any, name: str) -> bool:
        if name == "cart" and error is not None:
            raise error
        return name != "cart"

    other = ada.grant("other")
    leases = [(*ada.take(each), each) for each in (grant, other)]
    settings.DISTLOCK_BROWSER = {"PERMISSION": permit}
    found = ada.renew(*leases).json()["leases"]
    assert found[0] == {"id": leases[0][0], "lost": "permission"}
    assert found[1]["expires_in"] > 0
    assert holder_of("cart") == ""
    assert refusal(ada.acquire(grant)) == (403, {"reason": "permission"})


def test_a_name_or_an_audience_that_cannot_be(rf: Any) -> None:
    for name in ("", "x" * 513, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match="name"):
            lock_grant(name, rf.get("/"))
    origins = ("app.example", "https://app.example/", "https://", "ftp://app.example", "*", "null")
    for audience in (*origins, "https://app.example:443", "http://app.example:80", "https://me@app.example"):
        with pytest.raises(ValueError, match="audience"):
            lock_grant("cart", rf.get("/"), audience=audience)


# leases of others


def test_the_lease_of_somebody_else(ada: Person, bo: Person, grant: str) -> None:
    """It is not renewed, taken again or released, and is answered as one that never was."""
    lease, fence = ada.take(grant)
    theirs = bo.grant("cart")
    answers = set()
    for asked in (lease, new()):
        renewed = json.dumps(bo.renewed(asked, fence, theirs)).replace(asked, "*")
        released, deleted = bo.release(asked), bo.client.delete(f"{LEASES}{asked}/")
        answers.add((renewed, released.status_code, released.content, deleted.status_code, deleted.content))
    [(renewed, *statuses)] = answers
    assert "lost" in renewed
    assert statuses == [204, b"", 204, b""]
    assert bo.acquire(theirs, lease).status_code == 409
    assert ada.renewed(lease, fence, grant)["expires_in"] > 0
    waiting = new()
    assert bo.acquire(theirs, waiting).status_code == 409
    ada.release(waiting)
    assert BrowserTicket.rows.filter(lease=waiting).exists()


def test_no_answer_has_a_foreign_id(ada: Person, bo: Person, grant: str) -> None:
    lease, _ = ada.take(grant)
    answers = [bo.acquire(bo.grant("cart"), queue=queue) for queue in (True, False)]
    assert [set(answer.json()) for answer in answers] == [{"holder", "place", "retry_after"}] * 2
    texts = [answer.content.decode() for answer in answers]
    texts += [json.dumps(bo.leases()), bo.client.get("/page/?name=cart").content.decode()]
    assert not [text for text in texts if lease in text]


@pytest.mark.parametrize("another_user", [False, True])
def test_a_log_out_ends_a_lease_at_the_next_beat(ada: Person, bo: Person, grant: str, another_user: bool) -> None:
    lease, fence = ada.take(grant)
    ada.client.logout()
    if another_user:
        assert bo.user is not None
        ada.client.force_login(bo.user)
        assert ada.leases() == []
    assert ada.renewed(lease, fence, grant) == {"id": lease, "lost": "logged_out"}
    if not another_user:
        bo.take(bo.grant("cart"))


# quotas


def test_the_quota_of_leases(ada: Person, bo: Person, settings: Any) -> None:
    """It counts names: the client chooses the ids. And the Host header: ALLOWED_HOSTS lets every port through."""
    settings.DISTLOCK_BROWSER = {"MAX_HELD": 2}
    lease = new()
    grants = [ada.grant(f"name {number}") for number in range(3)]
    fence = ada.acquire(grants[0], lease).json()["fence"]
    assert ada.acquire(grants[1], lease).status_code == 201
    assert refusal(ada.acquire(grants[2], lease)) == (429, {"reason": "quota"})
    for host in ("testserver:81", "testserver.", "TESTSERVER"):
        grant = ada.grant("name 2", host)
        assert refusal(ada.acquire(grant, headers={"host": host})) == (429, {"reason": "quota"})
    assert ada.acquire(grants[0], lease).json()["fence"] == fence
    bo.take(bo.grant("name 2"))
    ada.release(lease)
    ada.take(ada.grant("one more"))


def test_the_quota_of_places(ada: Person, bo: Person, settings: Any) -> None:
    settings.DISTLOCK_BROWSER = {"MAX_WAITING": 2}
    for number in range(3):
        bo.take(bo.grant(f"name {number}"))
    waiting = [new(), new()]
    for number, lease in enumerate(waiting):
        assert ada.acquire(ada.grant(f"name {number}"), lease).status_code == 409
    assert refusal(ada.acquire(ada.grant("name 2"))) == (429, {"reason": "quota"})
    assert ada.acquire(ada.grant("name 2"), queue=False).status_code == 409
    assert ada.acquire(ada.grant("name 0"), waiting[0]).status_code == 409
    ada.release(waiting[0])
    assert ada.acquire(ada.grant("name 2")).status_code == 409


# bodies


def test_a_body_that_is_too_large(ada: Person, grant: str, settings: Any) -> None:
    """A long form is refused before it is read: Django's CSRF check would store its files first."""
    settings.DISTLOCK_BROWSER = {"MAX_BODY": 2000}
    too_large = (413, {"reason": "too_large"})
    for path in (LEASES, RENEW, f"{LEASES}{new()}/release/"):
        assert refusal(ada.post(path, {"grant": grant, "id": new(), "more": "x" * 2000})) == too_large
    strict = Client(enforce_csrf_checks=True)
    assert refusal(strict.post(f"{LEASES}{new()}/release/", {"file": "x" * 3000})) == too_large
    assert not BrowserLockRow.rows.exists()


def test_a_batch_has_each_lease_once_and_a_limit(ada: Person, grant: str, settings: Any) -> None:
    """One id has one answer: it must not be that of another name."""
    settings.DISTLOCK_BROWSER = {"MAX_BODY": 10**7}
    lease, fence = ada.take(grant)
    other = ada.grant("other")
    there = ada.acquire(other, lease).json()["fence"]
    response = ada.renew((lease, fence, grant), (lease, there, other))
    assert (response.status_code, response.json()["reason"]) == (400, "request")
    assert ada.renew(*[(new(), 1, grant)] * (MOST_RENEWED + 1)).status_code == 400


# CSRF


@pytest.fixture
def strict(ada: Person) -> Person:
    return Person(ada.user, enforce_csrf_checks=True)


def token_of(person: Person) -> str:
    token: str = person.client.get(CSRF).json()["csrf"]
    return token


def test_nothing_is_done_without_a_token(ada: Person, strict: Person, grant: str) -> None:
    lease, _ = ada.take(grant)
    response = strict.release(lease)
    assert response.status_code == 403
    assert response.json()["detail"].startswith("CSRF")
    assert strict.client.delete(f"{LEASES}{lease}/").status_code == 403
    assert strict.acquire(grant).status_code == 403
    assert strict.renew((new(), 1, grant)).status_code == 403
    assert holder_of("cart") == lease


@pytest.mark.parametrize("use_sessions", [False, True])
def test_a_token(ada: Person, strict: Person, settings: Any, use_sessions: bool) -> None:
    """In the header, or in the form of a beacon; a form is no body of an acquire, because the check has read it."""
    settings.CSRF_USE_SESSIONS = use_sessions
    token = token_of(strict)
    for multipart in (False, True):
        lease = new()
        assert strict.acquire(strict.grant("cart"), lease, headers={"X-CSRFToken": token}).status_code == 201
        form: dict[str, Any] = {"data": {"csrfmiddlewaretoken": token}}
        if not multipart:
            form = {"data": f"csrfmiddlewaretoken={token}", "content_type": "application/x-www-form-urlencoded"}
        assert strict.release(lease, **form).status_code == 204
        assert holder_of("cart") == ""
    for path in (LEASES, RENEW):
        response = strict.client.post(path, {"csrfmiddlewaretoken": token, "id": new()})
        assert (response.status_code, response.json()["reason"]) == (400, "request")


# another origin; the headers are those that browsers and django-cors-headers send
APP = "https://app.example"


def ask(person: Person, grant: str, origin: str) -> Any:
    return person.acquire(grant, headers={"X-CSRFToken": token_of(person), "Origin": origin})


def test_another_origin_needs_a_grant_that_names_it(strict: Person, settings: Any) -> None:
    grant = strict.grant("cart", audience=APP)
    assert ask(strict, grant, APP).status_code == 403  # by the CSRF check
    settings.CSRF_TRUSTED_ORIGINS = [APP, "https://other.example"]
    for other in (strict.grant("cart"), strict.grant("cart", audience="https://other.example")):
        assert refusal(ask(strict, other, APP)) == (403, {"reason": "grant", "detail": "audience"})
    response = ask(strict, grant, APP)
    assert response.status_code == 201
    headers = {"X-CSRFToken": token_of(strict), "Origin": APP}
    renewed = strict.renew((response.json()["id"], response.json()["fence"], grant), headers=headers)
    assert renewed.json()["leases"][0]["expires_in"] > 0


def test_a_grant_for_another_origin_is_not_one_for_this_site(strict: Person) -> None:
    assert refusal(ask(strict, strict.grant("cart", audience=APP), "http://testserver"))[0] == 403
    assert ask(strict, strict.grant("cart"), "http://testserver").status_code == 201


def test_a_preflight_gets_no_leave(strict: Person) -> None:
    """Without a CORS library browsers send nothing from another origin."""
    headers = {"Origin": APP, "Access-Control-Request-Method": "POST"}
    headers["Access-Control-Request-Headers"] = "content-type,x-csrftoken"
    for path in (LEASES, RENEW, CSRF, EVENTS):
        response = strict.client.options(path, headers=headers)
        assert response.status_code == 405
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


# what is stored and sent


def test_names_and_labels_are_data_and_never_markup(ada: Person, bo: Person, settings: Any) -> None:
    evil = "</p><script>alert(1)</script>\x1b[2J\u202e"
    settings.DISTLOCK_BROWSER = {"LABEL": lambda user: evil + "x" * 10_000}
    page = ada.client.get("/page/", {"name": evil.replace("\x1b", ""), "label": evil}).content.decode()
    assert "<script>" not in page
    ada.take(ada.grant(evil))
    refused, listed = bo.acquire(bo.grant(evil)), ada.client.get(LEASES)
    for response in (refused, listed):
        assert response["Content-Type"] == "application/json"
        assert response["X-Content-Type-Options"] == "nosniff"
    label = refused.json()["holder"]
    assert label.isprintable()
    assert len(label) < 256
    assert listed.json()["leases"][0]["name"] == evil


def test_two_tenants_of_one_project_are_told_apart_by_host(ada: Person, settings: Any) -> None:
    """User 5 here is not user 5 there."""
    settings.ALLOWED_HOSTS = ["one.example", "two.example"]
    grants = {host: ada.grant("cart", host) for host in settings.ALLOWED_HOSTS}
    here, there = {"host": "one.example"}, {"host": "two.example"}
    lease = new()
    foreign = ada.acquire(grants["one.example"], headers=there)
    assert refusal(foreign) == (403, {"reason": "grant", "detail": "foreign"})
    assert ada.acquire(grants["one.example"], lease, headers=here).status_code == 201
    assert ada.acquire(grants["two.example"], lease, headers=there).status_code == 409
    assert ada.client.get(LEASES, headers=there).json() == {"leases": []}
    ada.release(lease, headers=there)
    assert holder_of("cart") == lease


def test_no_beat_writes_the_session(ada: Person, grant: str, settings: Any) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    Session.objects.update(expire_date=timezone.now() + timedelta(hours=1))
    before = list(Session.objects.values_list("session_key", "session_data", "expire_date"))
    with CaptureQueriesContext(connection) as queries:
        lease, fence = ada.take(grant)
        ada.renewed(lease, fence, grant)
        ada.acquire(grant)
        ada.release(lease)
        response = ada.client.get(LEASES)
    assert not [query for query in queries if "UPDATE" in query["sql"] and "django_session" in query["sql"]]
    assert list(Session.objects.values_list("session_key", "session_data", "expire_date")) == before
    assert "sessionid" not in response.cookies


def test_no_cache_keeps_an_answer_or_a_page_with_a_grant(ada: Person, grant: str, settings: Any) -> None:
    responses = [ada.acquire(grant), ada.client.get(LEASES), ada.client.get(CSRF), ada.client.get(EVENTS)]
    responses += [ada.release(new()), ada.acquire("forged"), ada.client.put(LEASES)]
    assert {response["Cache-Control"] for response in responses} == {"no-store"}
    cache = "django.middleware.cache"
    settings.MIDDLEWARE = [
        f"{cache}.UpdateCacheMiddleware",
        *settings.MIDDLEWARE,
        f"{cache}.FetchFromCacheMiddleware",
    ]
    assert not [page for page in (ada.client.get("/page/?name=cart") for _ in range(2)) if page.has_header("Age")]
