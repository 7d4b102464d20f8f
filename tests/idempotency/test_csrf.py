"""The page that keeps a form whose visitor has logged in since, and the requests to which it must not be shown."""

from __future__ import annotations

from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_distlock.idempotency.csrf import keep_form
from tests.idempotency import MIDDLEWARE, views
from tests.idempotency.world import Browser, Stage, hidden_fields, redirect

if TYPE_CHECKING:
    from collections.abc import Iterator

urlpatterns = [*views.urlpatterns, path("in/", LoginView.as_view()), path("out/", LogoutView.as_view())]
OURS = "django_distlock.idempotency.csrf.csrf_failure"
TYPED = {"note": "what I typed"}
# Where it makes no difference whether the secret is in a cookie or in the session.
COOKIE = pytest.mark.parametrize("person", [False], ids=["cookie"], indirect=True)


class Person(Browser):
    """A browser with a form open in one tab, and a log-in in another."""

    def typed(self, shape: str = "form") -> dict[str, Any]:
        return self.open(shape) | TYPED

    def log_in(self, name: str = "smith") -> None:
        data = self.open() | {"username": name, "password": "pass"}
        assert self.client.post("/in/?next=/form/", data).status_code == 302

    def stale(self, shape: str = "form") -> dict[str, Any]:
        """What was typed into a form before the visitor has logged in again, in another tab."""
        self.log_in()
        fields = self.typed(shape)
        self.log_in()
        return fields

    def log_out(self) -> None:
        assert self.client.post("/out/", self.open()).status_code == 302


@pytest.fixture(params=[False, True], ids=["cookie", "session"])
def person(request: pytest.FixtureRequest, site: Stage, settings: Any) -> Iterator[Person]:
    settings.CSRF_USE_SESSIONS = request.param
    settings.X_FRAME_OPTIONS = "SAMEORIGIN"
    settings.LOGOUT_REDIRECT_URL = "/form/"
    settings.CSRF_FAILURE_VIEW = OURS
    settings.MIDDLEWARE = [*MIDDLEWARE, "django.middleware.clickjacking.XFrameOptionsMiddleware"]
    site.answer = redirect
    users = [User.objects.create_user(name, password="pass") for name in ("smith", "miller")]
    yield Person(Origin="http://testserver")
    for user in users:
        user.delete()


def is_djangos(response: Any) -> bool:
    return response.status_code == 403 and b"CSRF verification failed" in response.content


def saves_what_was_typed(person: Person, site: Stage, response: Any) -> None:
    html = response.content.decode()
    assert response.status_code == 403
    assert "Not saved yet" in html
    assert (response["X-Frame-Options"], response["Cache-Control"]) == ("DENY", "no-store")
    assert 'action="/form/"' in html
    assert site.effects == 0
    assert person.send(hidden_fields(html)).status_code == 302
    assert site.effects == 1
    assert site.runs[-1].POST["note"] == TYPED["note"]


def test_the_same_user_logs_in_in_another_tab(person: Person, site: Stage) -> None:
    """Her session has ended in between. Naive code lets Django's page answer, and the text is gone."""
    person.log_in()
    noted = [name for name in dict(person.client.session) if not name.startswith("_auth")]
    assert noted in ([], ["_csrftoken"]), "a log-in writes something for it"
    fields = person.typed()
    del person.client.cookies["sessionid"]
    person.log_in()
    saves_what_was_typed(person, site, person.send(fields))


def test_a_log_out_in_another_tab(person: Person, site: Stage, settings: Any) -> None:
    """Django lets that pass, and the middleware asks; unless the CSRF secret was in the session, which has ended."""
    person.log_in()
    fields = person.typed()
    person.log_out()
    before = site.effects
    response = person.send(fields)
    if settings.CSRF_USE_SESSIONS:
        assert is_djangos(response)
    else:
        assert response.status_code == 409
        assert hidden_fields(response.content.decode())["note"] == TYPED["note"]
    assert site.effects == before


def test_it_is_not_saved_twice(person: Person, site: Stage) -> None:
    """The first press was saved and its answer got lost; the key is still good, so the page sends it again."""
    person.log_in()
    fields = person.typed()
    assert person.send(fields).status_code == 302
    person.log_in()
    again = hidden_fields(person.send(fields).content.decode())
    assert again["_idempotency_key"] == fields["_idempotency_key"]
    assert person.send(again)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_another_site_sees_djangos_page(person: Person, site: Stage, settings: Any) -> None:
    """Also one that may send forms or hides where it is: it could have a visitor press a button under its own data."""
    settings.CSRF_TRUSTED_ORIGINS = ["http://other.example"]
    fields = person.typed()
    person.log_in()
    for origin in ("https://evil.example", "null", "http://testserver.evil.example", "http://other.example", None):
        victim = Browser(person, **({} if origin is None else {"Origin": origin}))
        assert is_djangos(victim.send(fields)), origin
    assert site.effects == 0


@COOKIE
@pytest.mark.parametrize("whose", ["another browser", "another user", "another page", "nobody", "none", "two"])
def test_a_key_that_is_not_the_visitors_own(person: Person, site: Stage, whose: str) -> None:
    """A form that an attacker has put into a page of this site has the attacker's key."""
    if whose == "another user":
        person.log_in("miller")
    fields = person.typed("named/a" if whose == "another page" else "form")
    others = {
        "another browser": Browser().open()["_idempotency_key"],
        "nobody": "x" * 22 + "." + "y" * 43 + "." + "z" * 43,
        "two": [fields["_idempotency_key"], "another"],
        "none": [],
    }
    fields["_idempotency_key"] = others.get(whose, fields["_idempotency_key"])
    if whose == "another user":
        person.log_out()
    person.log_in()
    response = person.send(fields)
    assert is_djangos(response)
    assert TYPED["note"].encode() not in response.content
    assert site.effects == 0


@COOKIE
def test_secrets_and_files_are_not_kept_and_the_rest_is_text(person: Person, site: Stage) -> None:
    """The rest can be read, and copied."""
    fields = person.stale()
    for more in ({"new_pass": "hunter2"}, {"photo": SimpleUploadedFile("a.txt", b"hunter2")}):
        html = person.send(fields | more).content.decode()
        assert "<form" not in html
        assert "hunter2" not in html
        assert TYPED["note"] in html
    html = person.send(fields | {"note": "<script>alert(1)</script>\"'", "<b>": "name"}).content.decode()
    assert "<script" not in html
    assert "<b>" not in html
    assert unescape(hidden_fields(html)["note"]) == "<script>alert(1)</script>\"'"


def own_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return keep_form(request, reason) or HttpResponse(reason, status=403)


@COOKIE
def test_a_failure_view_of_your_own_and_a_cookie_that_is_gone(person: Person, site: Stage, settings: Any) -> None:
    settings.CSRF_FAILURE_VIEW = f"{__name__}.own_failure"
    person.log_in()
    fields = person.typed()
    assert person.send(fields | {"_idempotency_key": "", "csrfmiddlewaretoken": ""}).content == b"CSRF token missing."
    del person.client.cookies["csrftoken"]
    saves_what_was_typed(person, site, person.send(fields))
