"""Forms: keys from the template tag, pages for people, and what happens after the back button."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.test import Client, RequestFactory

from django_distlock.idempotency.http.forms import Verified, issue, verify
from django_distlock.idempotency.http.requests import principal_of
from tests.idempotency.conftest import every_database, states
from tests.idempotency.views import page, redirect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage

BOTH = pytest.mark.parametrize("shape", ["form", "atomic_form"])


class Browser:
    """A client that keeps cookies, obeys CSRF, and sends what the page says."""

    def __init__(self) -> None:
        self.client = Client(enforce_csrf_checks=True)

    def open(self, shape: str = "form", form: int = 0) -> dict[str, str]:
        """The hidden fields of a form on the page."""
        html = self.client.get(f"/{shape}/").content.decode()
        return hidden_fields(html.split("<form")[form + 1])

    def send(self, fields: dict[str, Any], shape: str = "form", **more: Any) -> Any:
        return self.client.post(f"/{shape}/", fields, **more)


def hidden_fields(html: str) -> dict[str, str]:
    found = {}
    for tag in re.findall(r"<input [^>]*type=.hidden.[^>]*>", html):
        name = re.search(r'name="([^"]*)"', tag)
        value = re.search(r'value="([^"]*)"', tag)
        assert name, tag
        found[name[1]] = value[1] if value else ""
    return found


@pytest.fixture
def browser(site: Stage) -> Iterator[Browser]:
    site.answer = redirect
    return Browser()


@BOTH
def test_the_test_client_follows_a_replay(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape) | {"name": "a"}
    first, second = (browser.send(fields, shape, follow=True) for _ in range(2))
    assert first.redirect_chain == second.redirect_chain == [("/made/1/", 302)]


@every_database
@BOTH
def test_a_button_pressed_twice_acts_once(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape) | {"name": "a"}
    first, second = browser.send(fields, shape), browser.send(fields, shape)
    assert (first.status_code, second.status_code) == (302, 302)
    assert second["Location"] == first["Location"] == "/made/1/"
    assert site.effects == 1


def test_naive_forms_act_as_often_as_they_are_sent(site: Stage, browser: Browser) -> None:
    fields = browser.open() | {"name": "a"}
    del fields["_idempotency_key"]
    for _ in range(2):
        browser.send(fields)
    assert site.effects == 2


def test_two_forms_on_a_page_have_a_key_each(site: Stage, browser: Browser) -> None:
    html = browser.client.get("/form/").content.decode()
    first, second = re.findall(r'name="_idempotency_key" value="([^"]+)" autocomplete="off"', html)
    assert first.partition(".")[0] != second.partition(".")[0]


def test_a_form_for_another_address_names_it(site: Stage, browser: Browser) -> None:
    fields = browser.open(form=1)
    for _ in range(2):
        assert browser.send(fields, "elsewhere").status_code == 302
    assert site.effects == 1
    response = browser.send(browser.open(form=0), "elsewhere")
    assert response.status_code == 409
    assert site.effects == 1


@BOTH
def test_errors_can_be_corrected_and_sent(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape)
    site.answer = page
    assert browser.send(fields | {"name": ""}, shape).status_code == 200
    assert states(site.alias) == []
    site.answer = redirect
    assert browser.send(fields | {"name": "right"}, shape).status_code == 302
    assert browser.send(fields | {"name": "right"}, shape)["Idempotency-Replayed"] == "true"
    assert len(site.runs) == 2


@BOTH
def test_back_button_with_changed_data(site: Stage, browser: Browser, shape: str) -> None:
    """bfcache shows the page as it was left, key included: the page asks, and can submit as new."""
    fields = browser.open(shape)
    browser.send(fields | {"name": "a"}, shape)
    asked = browser.send(fields | {"name": "b <&>"}, shape)
    assert asked.status_code == 422
    html = asked.content.decode()
    assert "Already saved" in html
    assert 'href="/made/1/"' in html
    assert site.effects == 1
    again = hidden_fields(html)
    assert again["name"] == "b &lt;&amp;&gt;"
    assert again["_idempotency_key"] != fields["_idempotency_key"]
    assert again["csrfmiddlewaretoken"]
    assert browser.send(again | {"name": "b <&>"}, shape).status_code == 302
    assert site.effects == 2


def test_the_pressed_button_belongs_to_what_is_sent(site: Stage, browser: Browser) -> None:
    fields = browser.open()
    assert browser.send(fields | {"save": ""}).status_code == 302
    assert browser.send(fields | {"publish": ""}).status_code == 422


def test_the_page_repeats_no_secrets_and_no_files(site: Stage, browser: Browser) -> None:
    fields = browser.open()
    browser.send(fields | {"name": "a"})
    for more in ({"password": "hunter2"}, {"photo": SimpleUploadedFile("a.txt", b"x")}):
        html = browser.send(fields | {"name": "b"} | more).content.decode()
        assert "hunter2" not in html
        assert "<form" not in html


@BOTH
def test_multipart_with_a_csrf_token(site: Stage, browser: Browser, shape: str) -> None:
    """CSRF has parsed the stream: ``request.body`` raises from then on."""

    def read_body(request: Any) -> None:
        with pytest.raises(Exception, match="cannot access body"):
            _ = request.body
        read.append(request.FILES["photo"].read())

    read: list[bytes] = []
    site.during = read_body
    fields = browser.open(shape)

    def send(content: bytes) -> Any:
        return browser.send(fields | {"photo": SimpleUploadedFile("a.txt", content)}, shape)

    assert [send(b"one").status_code for _ in range(2)] == [302, 302]
    assert send(b"two").status_code == 422
    assert site.effects == 1
    assert read == [b"one"], "the view does not get the file from its beginning"


def test_a_message_is_shown_again(site: Stage, browser: Browser) -> None:
    """The first answer never arrived: its cookie of messages did not either."""
    fields = browser.open()
    lost = browser.send(fields)
    assert [str(m) for m in get_messages(lost.wsgi_request)] == ["Saved."]
    del browser.client.cookies["messages"]
    again = browser.send(fields)
    assert [(str(m), m.level_tag) for m in get_messages(again.wsgi_request)] == [("Saved.", "success")]


def test_a_message_that_waits_is_not_doubled(site: Stage, browser: Browser) -> None:
    fields = browser.open()
    for _ in range(2):
        last = browser.send(fields)
    assert [str(m) for m in get_messages(last.wsgi_request)] == ["Saved."]


@pytest.mark.parametrize("shape", ["form", "cached", "cached_lazily"])
def test_a_page_with_a_key_is_for_one_person_and_once(site: Stage, browser: Browser, shape: str) -> None:
    """Naive code behind cache_page gives one key to all visitors."""
    first = browser.client.get(f"/{shape}/")
    second = browser.client.get(f"/{shape}/")
    assert "Cookie" in first["Vary"]
    assert "private" in first["Cache-Control"]
    assert hidden_fields(first.content.decode()) != hidden_fields(second.content.decode())


def test_session_keys_may_change(site: Stage, browser: Browser) -> None:
    """The first answer, with the new session cookie, was lost: the old cookie comes with the retry."""
    browser.client.get("/form/")
    site.during = lambda request: request.session.update({"cart": 1}) or request.session.cycle_key()
    fields = browser.open()
    before = dict(browser.client.cookies)
    browser.send(fields)
    browser.client.cookies.clear()
    browser.client.cookies.update(before)
    assert browser.send(fields)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_a_log_in_between_page_and_post(site: Stage, browser: Browser) -> None:
    """The key is of the one who opened the page: the new one is asked, nothing is lost and nothing is done."""
    user = User(pk=4711, username="somebody")
    user.save()
    try:
        fields = browser.open()
        browser.client.force_login(user)
        response = browser.send(fields | {"name": "typed"})
        assert response.status_code == 409
        assert site.effects == 0
        again = hidden_fields(response.content.decode())
        assert browser.send(again | {"name": "typed"}).status_code == 302
        assert site.effects == 1
    finally:
        user.delete()


def test_a_page_may_be_the_last_word(site: Stage, browser: Browser) -> None:
    site.during = lambda request: request.idempotency.keep()
    site.answer = page
    fields = browser.open()
    assert [browser.send(fields).content for _ in range(2)] == [b"the form with its errors"] * 2
    assert site.effects == 1


def test_htmx_goes_elsewhere(site: Stage, browser: Browser) -> None:
    site.answer = lambda request: HttpResponse("", headers={"HX-Redirect": "/made/1/"})
    fields = browser.open()
    assert [browser.send(fields)["HX-Redirect"] for _ in range(2)] == ["/made/1/"] * 2
    assert site.effects == 1


def test_a_server_error_lets_the_form_be_sent_again(site: Stage, browser: Browser) -> None:
    fields = browser.open("atomic_form")
    site.answer = lambda request: HttpResponse(status=500)
    assert browser.send(fields, "atomic_form").status_code == 500
    site.answer = redirect
    assert browser.send(fields, "atomic_form").status_code == 302
    assert site.effects == 1


def test_the_key_of_the_form_counts_before_the_header(site: Stage, browser: Browser) -> None:
    """Firefox can add its own header, with a new key for each press of the button."""
    fields = browser.open()
    for number in range(2):
        browser.send(fields, headers={"Idempotency-Key": f'"{number}"'})
    assert site.effects == 1


def test_a_form_with_too_many_addresses_is_told_when_it_is_rendered(site: Stage, browser: Browser) -> None:
    """Naive code issues a key that it does not take back."""
    request = browser.client.get("/form/").wsgi_request
    value = issue(request, [f"/{number}/" for number in range(20)])
    assert verify(RequestFactory().post("/19/"), value, principal_of(request).text) is Verified.GOOD
    with pytest.raises(ValueError, match="20 addresses"):
        issue(request, [f"/{number}/" for number in range(21)])
