"""What the addresses refuse, and what they do not reveal. One class for each threat."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session
from django.core import signing
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import connection
from django.http import Http404
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_distlock.browser.grants import SALT, lock_grant, read_grant, sign
from django_distlock.browser.http.actions import MOST_RENEWED
from django_distlock.models import BrowserLockRow, BrowserTicket
from tests.browserlocks.http.people import CSRF, EVENTS, LEASES, RENEW, Person, holder_of, new

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("crew")


@pytest.fixture
def grant(ada: Person) -> str:
    return ada.grant("cart")


def refusal(response: Any) -> tuple[int, Any]:
    return response.status_code, response.json()


class TestGrants:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
            lambda text: "",
            lambda text: "no grant",
            lambda text: "\ud800",
            lambda text: text.split(":")[0],
            lambda text: signing.dumps(signing.loads(text, salt=SALT), salt="another"),
            lambda text: signing.dumps(["n", "s", "u"], salt=SALT),
        ],
    )
    def test_forged(self, ada: Person, grant: str, spoil: Callable[[str], str]) -> None:
        assert refusal(ada.acquire(spoil(grant))) == (403, {"reason": "grant", "detail": "forged"})
        assert not BrowserLockRow.rows.exists()

    def test_with_another_name(self, ada: Person, grant: str) -> None:
        """What is signed cannot be exchanged."""
        head, *rest = ada.grant("another").split(":")
        assert refusal(ada.acquire(":".join([head, *grant.split(":")[1:]])))[0] == 403
        assert len(rest) == 2

    def test_expired(self, ada: Person, grant: str) -> None:
        old = signing.dumps({**signing.loads(grant, salt=SALT), "u": 1}, salt=SALT)
        assert refusal(ada.acquire(old)) == (403, {"reason": "grant", "detail": "expired"})

    def test_a_lease_does_not_outlive_its_grant(self, ada: Person, bo: Person, grant: str) -> None:
        lease, fence = ada.take(grant)
        old = signing.dumps({**signing.loads(grant, salt=SALT), "u": 1}, salt=SALT)
        assert ada.renewed(lease, fence, old) == {"id": lease, "lost": "grant"}
        bo.take(bo.grant("cart"))

    def test_foreign(self, bo: Person, grant: str) -> None:
        assert refusal(bo.acquire(grant)) == (403, {"reason": "grant", "detail": "foreign"})
        assert not BrowserLockRow.rows.exists()

    def test_of_a_visitor_without_an_account(self) -> None:
        one, other = Person(), Person()
        grant = one.grant("cart")
        one.take(grant)
        assert refusal(other.acquire(grant)) == (403, {"reason": "grant", "detail": "foreign"})

    def test_of_another_name_does_not_renew(self, ada: Person, grant: str) -> None:
        """A permission that is asked for a name must be that of the lease."""
        lease, fence = ada.take(grant)
        ends = BrowserLockRow.rows.get(name="cart").expires_at
        assert "lost" in ada.renewed(lease, fence, ada.grant("another"))
        assert BrowserLockRow.rows.get(name="cart").expires_at == ends

    def test_replayed_after_a_release(self, ada: Person, grant: str) -> None:
        """The recorded request gets a new fence, and what had the old one is refused."""
        lease, fence = ada.take(grant)
        ada.release(lease)
        again = ada.acquire(grant, lease)
        assert again.status_code == 201
        assert again.json()["fence"] > fence
        assert "lost" in ada.renewed(lease, fence, grant)

    def test_replayed_after_a_log_out(self, ada: Person, grant: str) -> None:
        ada.client.logout()
        assert refusal(ada.acquire(grant)) == (401, {"reason": "logged_out"})

    def test_of_a_secret_key_that_was_replaced(self, ada: Person, grant: str, settings: Any) -> None:
        settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
        settings.SECRET_KEY = "another"
        ada.take(grant)

    def test_permission_is_asked_at_each_acquire_and_renewal(self, ada: Person, grant: str, settings: Any) -> None:
        lease, fence = ada.take(grant)
        settings.DISTLOCK_BROWSER = {"PERMISSION": lambda request, name: request.user.username != "ada"}
        assert ada.renewed(lease, fence, grant) == {"id": lease, "lost": "permission"}
        assert holder_of("cart") == ""
        assert refusal(ada.acquire(grant)) == (403, {"reason": "permission"})

    @pytest.mark.parametrize("error", [PermissionDenied, Http404, ObjectDoesNotExist])
    def test_a_permission_for_what_is_gone(self, ada: Person, grant: str, settings: Any, error: Any) -> None:
        """One deleted object must not cost the other leases of the batch."""

        def permit(request: Any, name: str) -> bool:
            if name == "cart":
                raise error
            return True

        other = ada.grant("other")
        leases = [(*ada.take(each), each) for each in (grant, other)]
        settings.DISTLOCK_BROWSER = {"PERMISSION": permit}
        found = ada.renew(*leases).json()["leases"]
        assert found[0] == {"id": leases[0][0], "lost": "permission"}
        assert found[1]["expires_in"] > 0

    def test_a_name_that_no_database_can_store(self, rf: Any) -> None:
        for name in ("", "x" * 513, "a\0b", "\ud800"):
            with pytest.raises(ValueError, match="name"):
                lock_grant(name, rf.get("/"))


class TestLeasesOfOthers:
    def test_are_not_renewed(self, ada: Person, bo: Person, grant: str) -> None:
        lease, fence = ada.take(grant)
        theirs = bo.grant("cart")
        assert "lost" in bo.renewed(lease, fence, theirs)
        assert ada.renewed(lease, fence, grant)["expires_in"] > 0

    def test_are_not_acquired_again(self, ada: Person, bo: Person, grant: str) -> None:
        lease, _ = ada.take(grant)
        assert bo.acquire(bo.grant("cart"), lease).status_code == 409

    def test_are_not_released(self, ada: Person, bo: Person, grant: str) -> None:
        lease, _ = ada.take(grant)
        assert bo.release(lease).status_code == 204
        assert bo.client.delete(f"{LEASES}{lease}/").status_code == 204
        assert holder_of("cart") == lease

    def test_no_answer_has_a_foreign_id(self, ada: Person, bo: Person, grant: str) -> None:
        lease, _ = ada.take(grant)
        texts = [bo.acquire(bo.grant("cart"), queue=queue).content.decode() for queue in (True, False)]
        texts += [json.dumps(bo.leases()), bo.client.get("/page/?name=cart").content.decode()]
        assert not [text for text in texts if lease in text]

    def test_places_are_not_given_up_by_others(self, ada: Person, bo: Person, grant: str) -> None:
        ada.take(grant)
        waiting = new()
        assert bo.acquire(bo.grant("cart"), waiting).status_code == 409
        ada.release(waiting)
        assert BrowserTicket.rows.filter(lease=waiting).exists()


class TestLogOut:
    def test_ends_a_lease_at_the_next_beat(self, ada: Person, bo: Person, grant: str) -> None:
        lease, fence = ada.take(grant)
        ada.client.logout()
        assert ada.renewed(lease, fence, grant) == {"id": lease, "lost": "logged_out"}
        bo.take(bo.grant("cart"))

    def test_and_another_user_in_the_same_browser(self, ada: Person, bo: Person, grant: str) -> None:
        lease, fence = ada.take(grant)
        assert bo.user is not None
        ada.client.force_login(bo.user)
        assert ada.renewed(lease, fence, grant) == {"id": lease, "lost": "logged_out"}
        assert ada.leases() == []

    def test_a_foreign_grant_ends_only_the_lease_of_its_visitor(self, ada: Person, bo: Person, grant: str) -> None:
        """With a grant of ada's that bo has got hold of, and any id."""
        theirs = bo.grant("other")
        lease, fence = bo.take(theirs)
        assert bo.renewed(lease, fence, grant) == {"id": lease, "lost": "logged_out"}
        assert holder_of("other") == lease


class TestEnumeration:
    """Held, free and unknown names and leases give equal answers."""

    def test_of_names(self, ada: Person, bo: Person, grant: str) -> None:
        ada.take(grant)
        forged = [sign(read_grant(grant, _signer(grant)))[:-3] + "abc", "cart", "never-seen"]
        answers = {(response.status_code, response.content) for response in map(bo.acquire, forged)}
        assert len(answers) == 1

    def test_of_leases(self, ada: Person, bo: Person, grant: str) -> None:
        lease, fence = ada.take(grant)
        theirs = bo.grant("cart")
        answers = set()
        for asked in (lease, new()):
            renewed = json.dumps(bo.renewed(asked, fence, theirs)).replace(asked, "*")
            released, deleted = bo.release(asked), bo.client.delete(f"{LEASES}{asked}/")
            answers.add((renewed, released.status_code, released.content, deleted.status_code, deleted.content))
        assert len(answers) == 1

    def test_the_holder_is_a_label(self, ada: Person, bo: Person, grant: str) -> None:
        ada.take(grant)
        found = bo.acquire(bo.grant("cart")).json()
        assert set(found) == {"holder", "place", "retry_after"}
        assert found["holder"] == "Ada"


def _signer(grant: str) -> str:
    signer: str = signing.loads(grant, salt=SALT)["s"]
    return signer


class TestQuota:
    def test_of_leases(self, ada: Person, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"MAX_HELD": 2}
        taken = [(ada.grant(f"name {number}"), *ada.take(ada.grant(f"name {number}"))) for number in range(2)]
        assert refusal(ada.acquire(ada.grant("one more"))) == (429, {"reason": "quota"})
        grant, lease, fence = taken[0]
        again = ada.acquire(grant, lease)
        assert (again.status_code, again.json()["fence"]) == (201, fence)
        ada.release(lease)
        ada.take(ada.grant("one more"))

    def test_of_places(self, ada: Person, bo: Person, settings: Any) -> None:
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

    def test_counts_names_and_not_ids(self, ada: Person, settings: Any) -> None:
        """The client chooses the ids: one for all of its leases is no way around the quota."""
        settings.DISTLOCK_BROWSER = {"MAX_HELD": 2}
        lease = new()
        answers = [ada.acquire(ada.grant(f"name {number}"), lease).status_code for number in range(3)]
        assert answers == [201, 201, 429]
        assert len(ada.leases()) == 2

    @pytest.mark.parametrize("host", ["testserver:81", "testserver.", "TESTSERVER"])
    def test_is_the_same_however_the_host_is_written(self, ada: Person, settings: Any, host: str) -> None:
        """The client writes the Host header: ALLOWED_HOSTS lets every port through."""
        settings.DISTLOCK_BROWSER = {"MAX_HELD": 1}
        ada.take(ada.grant("one"))
        grant = ada.client.get("/grant/", {"name": "two"}, headers={"host": host}).json()["grant"]
        assert refusal(ada.acquire(grant, headers={"host": host})) == (429, {"reason": "quota"})

    def test_is_for_each_user(self, ada: Person, bo: Person, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"MAX_HELD": 1}
        ada.take(ada.grant("one"))
        bo.take(bo.grant("two"))


class TestBodies:
    def test_too_large(self, ada: Person, grant: str, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"MAX_BODY": 2000}
        for path in (LEASES, RENEW, f"{LEASES}{new()}/release/"):
            assert refusal(ada.post(path, {"grant": grant, "id": new(), "more": "x" * 2000})) == (
                413,
                {"reason": "too_large"},
            )
        assert not BrowserLockRow.rows.exists()

    def test_a_long_form_is_refused_before_it_is_read(self, ada: Person, settings: Any) -> None:
        """Django's CSRF check would store its files first."""
        settings.DISTLOCK_BROWSER = {"MAX_BODY": 2000}
        strict = Client(enforce_csrf_checks=True)
        response = strict.post(f"{LEASES}{new()}/release/", {"file": "x" * 3000})
        assert refusal(response) == (413, {"reason": "too_large"})

    def test_a_form_is_no_body_of_an_acquire(self, ada: Person) -> None:
        """The CSRF check has read it: there is nothing left to parse."""
        strict = Person(ada.user, enforce_csrf_checks=True)
        token = strict.client.get(CSRF).json()["csrf"]
        for path in (LEASES, RENEW):
            response = strict.client.post(path, {"csrfmiddlewaretoken": token, "id": new()})
            assert refusal(response)[0] == 400
            assert response.json()["reason"] == "request"

    def test_a_batch_has_each_lease_once(self, ada: Person, grant: str) -> None:
        """One id has one answer: it must not be that of another name."""
        lease, fence = ada.take(grant)
        other = ada.grant("other")
        there = ada.acquire(other, lease).json()["fence"]
        BrowserLockRow.rows.filter(name="cart").update(expires_at=1)
        response = ada.renew((lease, fence, grant), (lease, there, other))
        assert (response.status_code, response.json()["reason"]) == (400, "request")

    def test_a_batch_has_a_limit(self, ada: Person, grant: str, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"MAX_BODY": 10**7}
        assert ada.renew(*[(new(), 1, grant)] * (MOST_RENEWED + 1)).status_code == 400


class TestCsrf:
    @pytest.fixture
    def strict(self, ada: Person) -> Person:
        return Person(ada.user, enforce_csrf_checks=True)

    def test_a_beacon_without_a_token_releases_nothing(self, ada: Person, strict: Person, grant: str) -> None:
        lease, _ = ada.take(grant)
        response = strict.release(lease)
        assert response.status_code == 403
        assert response.json()["detail"].startswith("CSRF")
        assert strict.client.delete(f"{LEASES}{lease}/").status_code == 403
        assert holder_of("cart") == lease

    def test_a_beacon_with_a_token(self, ada: Person, strict: Person, grant: str) -> None:
        for content_type in ("application/x-www-form-urlencoded", "multipart"):
            lease, _ = ada.take(grant)
            token = strict.client.get(CSRF).json()["csrf"]
            form: dict[str, Any] = {"data": {"csrfmiddlewaretoken": token}}
            if content_type != "multipart":
                form = {"data": f"csrfmiddlewaretoken={token}", "content_type": content_type}
            assert strict.release(lease, **form).status_code == 204
            assert holder_of("cart") == ""

    def test_nothing_is_acquired_or_renewed_without_a_token(self, strict: Person, grant: str) -> None:
        assert strict.acquire(grant).status_code == 403
        assert strict.renew((new(), 1, grant)).status_code == 403
        token = strict.client.get(CSRF).json()["csrf"]
        assert strict.acquire(grant, headers={"X-CSRFToken": token}).status_code == 201

    @pytest.mark.parametrize("use_sessions", [False, True])
    def test_where_the_secret_is_kept(self, strict: Person, grant: str, settings: Any, use_sessions: bool) -> None:
        settings.CSRF_USE_SESSIONS = use_sessions
        token = strict.client.get(CSRF).json()["csrf"]
        assert strict.acquire(grant, headers={"X-CSRFToken": token}).status_code == 201


class TestStoredText:
    """Names and labels are data: never markup."""

    EVIL = "</p><script>alert(1)</script>\x1b[2J\u202e"

    def test_name_in_a_page(self, ada: Person) -> None:
        text = ada.client.get("/page/", {"name": self.EVIL.replace("\x1b", ""), "label": self.EVIL}).content.decode()
        assert "<script>" not in text

    def test_label_and_name_in_answers(self, ada: Person, bo: Person, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"LABEL": lambda user: self.EVIL}
        name = self.EVIL
        ada.take(ada.grant(name))
        response = bo.acquire(bo.grant(name))
        assert response["Content-Type"] == "application/json"
        assert response["X-Content-Type-Options"] == "nosniff"
        label = response.json()["holder"]
        assert label.isprintable()
        listed = ada.client.get(LEASES)
        assert listed["Content-Type"] == "application/json"
        assert listed.json()["leases"][0]["name"] == name

    def test_a_label_too_long(self, ada: Person, bo: Person, settings: Any) -> None:
        settings.DISTLOCK_BROWSER = {"LABEL": lambda user: "x" * 10_000}
        ada.take(ada.grant("cart"))
        assert len(bo.acquire(bo.grant("cart")).json()["holder"]) < 256


class TestTenants:
    """Two tenants of one project, told apart by host name: user 5 here is not user 5 there."""

    @pytest.fixture(autouse=True)
    def _hosts(self, settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["one.example", "two.example"]

    def test_a_grant_counts_on_its_host(self, ada: Person) -> None:
        grant = ada.client.get("/grant/", {"name": "cart"}, headers={"host": "one.example"}).json()["grant"]
        there = ada.acquire(grant, headers={"host": "two.example"})
        assert refusal(there) == (403, {"reason": "grant", "detail": "foreign"})
        assert ada.acquire(grant, headers={"host": "one.example"}).status_code == 201

    def test_leases_are_of_their_host(self, ada: Person) -> None:
        grants = {
            host: ada.client.get("/grant/", {"name": "cart"}, headers={"host": host}).json()["grant"]
            for host in ("one.example", "two.example")
        }
        lease = new()
        assert ada.acquire(grants["one.example"], lease, headers={"host": "one.example"}).status_code == 201
        there = {"host": "two.example"}
        assert ada.acquire(grants["two.example"], lease, headers=there).status_code == 409
        assert ada.client.get(LEASES, headers=there).json() == {"leases": []}
        ada.release(lease, headers=there)
        assert holder_of("cart") == lease


class TestSession:
    def test_no_beat_writes_it(self, ada: Person, grant: str, settings: Any) -> None:
        settings.SESSION_SAVE_EVERY_REQUEST = True
        Session.objects.update(expire_date=timezone.now() + timedelta(hours=1))
        before = list(Session.objects.values_list("session_key", "session_data", "expire_date"))
        lease, fence = ada.take(grant)
        with CaptureQueriesContext(connection) as queries:
            ada.renewed(lease, fence, grant)
            ada.acquire(grant)
            ada.leases()
            ada.release(lease)
            cookies = {name for response in [ada.client.get(LEASES)] for name in response.cookies}
        assert not [query for query in queries if "UPDATE" in query["sql"] and "django_session" in query["sql"]]
        assert list(Session.objects.values_list("session_key", "session_data", "expire_date")) == before
        assert "sessionid" not in cookies

    def test_answers_are_kept_by_no_cache(self, ada: Person, grant: str) -> None:
        responses = [ada.acquire(grant), ada.client.get(LEASES), ada.client.get(CSRF), ada.client.get(EVENTS)]
        responses += [ada.release(new()), ada.acquire("forged"), ada.client.put(LEASES)]
        assert {response["Cache-Control"] for response in responses} == {"no-store"}

    def test_a_page_with_a_grant_is_kept_by_no_cache(self, ada: Person, settings: Any) -> None:
        cache = "django.middleware.cache"
        settings.MIDDLEWARE = [
            f"{cache}.UpdateCacheMiddleware",
            *settings.MIDDLEWARE,
            f"{cache}.FetchFromCacheMiddleware",
        ]
        pages = {ada.client.get("/page/", {"name": "cart"}).content for _ in range(2)}
        assert len(pages) in (1, 2)
        assert not ada.client.get("/page/", {"name": "cart"}).has_header("Age")


class TestOrigins:
    """A front end on another origin. The headers are those that browsers and django-cors-headers send."""

    APP = "https://app.example"

    @pytest.fixture
    def strict(self, ada: Person) -> Person:
        return Person(ada.user, enforce_csrf_checks=True)

    def ask(self, person: Person, grant: str, origin: str) -> Any:
        token = person.client.get(CSRF).json()["csrf"]
        return person.acquire(grant, headers={"X-CSRFToken": token, "Origin": origin})

    def test_is_refused_by_the_csrf_check(self, strict: Person) -> None:
        grant = strict.grant("cart", audience=self.APP)
        assert self.ask(strict, grant, self.APP).status_code == 403

    def test_is_refused_by_a_grant_that_does_not_name_it(self, strict: Person, settings: Any) -> None:
        settings.CSRF_TRUSTED_ORIGINS = [self.APP, "https://other.example"]
        answer = (403, {"reason": "grant", "detail": "audience"})
        assert refusal(self.ask(strict, strict.grant("cart"), self.APP)) == answer
        for_other = strict.grant("cart", audience="https://other.example")
        assert refusal(self.ask(strict, for_other, self.APP)) == answer

    def test_has_a_grant_that_names_it(self, strict: Person, settings: Any) -> None:
        settings.CSRF_TRUSTED_ORIGINS = [self.APP]
        grant = strict.grant("cart", audience=self.APP)
        response = self.ask(strict, grant, self.APP)
        assert response.status_code == 201
        facts = response.json()
        token = strict.client.get(CSRF).json()["csrf"]
        headers = {"X-CSRFToken": token, "Origin": self.APP}
        renewed = strict.renew((facts["id"], facts["fence"], grant), headers=headers).json()["leases"][0]
        assert renewed["expires_in"] > 0

    def test_a_grant_for_another_origin_is_not_one_for_this_site(self, strict: Person) -> None:
        grant = strict.grant("cart", audience=self.APP)
        assert refusal(self.ask(strict, grant, "http://testserver"))[0] == 403
        assert self.ask(strict, strict.grant("cart"), "http://testserver").status_code == 201

    def test_a_preflight_gets_no_leave(self, strict: Person) -> None:
        """Without a CORS library browsers send nothing from another origin."""
        headers = {"Origin": self.APP, "Access-Control-Request-Method": "POST"}
        headers["Access-Control-Request-Headers"] = "content-type,x-csrftoken"
        for path in (LEASES, RENEW, CSRF, EVENTS):
            response = strict.client.options(path, headers=headers)
            assert response.status_code == 405
            assert not [name for name in response.headers if name.lower().startswith("access-control")]

    def test_only_an_origin_is_an_audience(self, rf: Any, ada: Person) -> None:
        for audience in (
            "app.example",
            "https://app.example/",
            "https://",
            "ftp://app.example",
            "*",
            "null",
            "https://app.example:443",
            "http://app.example:80",
            "https://me@app.example",
        ):
            with pytest.raises(ValueError, match="audience"):
                lock_grant("cart", rf.get("/"), audience=audience)
