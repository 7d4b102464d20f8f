"""What people do: press twice, go back, correct errors, log in between, open two tabs; and the pages that they see."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.urls import re_path

from django_distlock.idempotency.http.responses import is_secret
from tests.idempotency import views
from tests.idempotency.views import copy_of, show
from tests.idempotency.world import (
    Browser,
    Running,
    Stage,
    change,
    hidden_fields,
    redirect,
    states,
)

BOTH = pytest.mark.parametrize("shape", ["form", "atomic_form"])
SECRET = """
password newPassword user-password passwd pwd2 new_pass passphrase passcode pw form-0-pin newPIN otp_code totp mfa_code
2fa mTAN debit_iban ssn social_security_number cc_number cc-csc credit-card creditCardNumber card cvv2 security_code
oneTimeCode recovery_code APIKey private_key client_secret access_token credentials kennwort passwort mot_de_passe
contraseña senha clave_secreta wachtwoord parola sort_code account_number kontonummer geheimzahl signature_key
"""
HARMLESS = """
name opinion spin pinned compass bypass passenger passport_country tangent instant photo_option stopwatch caribbean
mission session_date wildcard scorecard cardinal secretary cc bcc code promo_code zip_code keyboard monkey key account
"""
# A catch-all route, as sites with pages of a CMS have.
urlpatterns = [*views.urlpatterns, re_path(r"^(?P<page>.*)order/$", copy_of(show))]


def page(request: Any) -> HttpResponse:
    return HttpResponse("the form with its errors")


PRESSED = [("default", "form"), ("default", "atomic_form"), ("postgres", "form"), ("mariadb", "form")]


@pytest.mark.parametrize(("alias", "shape"), PRESSED)
def test_a_button_pressed_twice_acts_once(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape) | {"name": "a"}
    first, second = (browser.send(fields, shape, follow=True) for _ in range(2))
    assert first.redirect_chain == second.redirect_chain == [("/made/1/", 302)]
    assert site.effects == 1


def test_two_forms_on_a_page_have_a_key_each_for_their_address(site: Stage, browser: Browser) -> None:
    fields = browser.open(form=1)
    assert [browser.send(fields, "elsewhere").status_code for _ in range(2)] == [302, 302]
    assert browser.send(browser.open(form=0), "elsewhere").status_code == 409
    assert site.effects == 1


@BOTH
def test_errors_can_be_corrected_and_sent(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape)
    for failure in (page, lambda request: HttpResponse(status=500)):
        site.answer = failure
        assert browser.send(fields | {"name": ""}, shape).status_code in (200, 500)
        assert states(site.alias) == []
    site.answer = redirect
    assert browser.send(fields | {"name": "right"}, shape).status_code == 302
    assert browser.send(fields | {"name": "right"}, shape)["Idempotency-Replayed"] == "true"
    assert len(site.runs) == 3


@BOTH
def test_back_button_with_changed_data(site: Stage, browser: Browser, shape: str) -> None:
    """The page asks, and can submit as new. The pressed button belongs to what is sent."""
    fields = browser.open(shape)
    browser.send(fields | {"name": "a", "save": ""}, shape)
    assert browser.send(fields | {"name": "a", "publish": ""}, shape).status_code == 422
    asked = browser.send(fields | {"name": "b <&>"}, shape)
    assert asked.status_code == 422
    text = asked.content.decode()
    assert "Already saved" in text
    assert 'href="/made/1/"' in text
    assert site.effects == 1
    again = hidden_fields(text)
    assert again["name"] == "b &lt;&amp;&gt;"
    assert again["_idempotency_key"] != fields["_idempotency_key"]
    assert browser.send(again | {"name": "b <&>"}, shape).status_code == 302
    assert site.effects == 2


def test_the_page_repeats_no_secrets_and_no_files(site: Stage, browser: Browser) -> None:
    """Judged by the words in their names."""
    assert [name for name in SECRET.split() if not is_secret(name)] == []
    assert [name for name in HARMLESS.split() if is_secret(name)] == []
    fields = browser.open()
    browser.send(fields | {"name": "a"})
    photo: Any = SimpleUploadedFile("a.txt", b"x")
    for more in ({"password": "hunter2"}, {"api_key": "hunter2"}, {"kennwort": "hunter2"}, {"photo": photo}):
        text = browser.send(fields | {"name": "b"} | more).content.decode()
        assert "has not been saved" in text
        assert "hunter2" not in text
        assert "<form" not in text


@BOTH
def test_multipart_with_a_csrf_token(site: Stage, browser: Browser, shape: str) -> None:
    """CSRF has parsed the stream: ``request.body`` raises from then on."""
    read: list[bytes] = []
    site.during = lambda request: read.append(request.FILES["photo"].read())
    fields = browser.open(shape)
    photos = [{"photo": SimpleUploadedFile("a.txt", content)} for content in (b"one", b"one", b"two")]
    assert [browser.send(fields | photo, shape).status_code for photo in photos] == [302, 302, 422]
    assert read == [b"one"], "the view does not get the file from its beginning"


def test_a_message_is_shown_again_but_not_doubled(site: Stage, browser: Browser) -> None:
    """The first answer never arrived: its cookie of messages did not either."""
    fields = browser.open()
    lost, waits = browser.send(fields), browser.send(fields)
    del browser.client.cookies["messages"]
    for answer in (lost, waits, browser.send(fields)):
        assert [(str(m), m.level_tag) for m in get_messages(answer.wsgi_request)] == [("Saved.", "success")]


@pytest.mark.parametrize("shape", ["form", "cached", "cached_lazily"])
def test_a_page_with_a_key_is_for_one_person_and_once(site: Stage, browser: Browser, shape: str) -> None:
    """Naive code behind cache_page gives one key to all visitors."""
    first = browser.client.get(f"/{shape}/")
    assert "Cookie" in first["Vary"]
    assert "private" in first["Cache-Control"]
    assert hidden_fields(first.content.decode().split("<form")[1]) != browser.open(shape)


def test_session_keys_may_change(site: Stage, browser: Browser) -> None:
    """The first answer, with the new session cookie, was lost: the old cookie comes with the retry."""
    site.during = lambda request: request.session.update({"cart": 1}) or request.session.cycle_key()
    fields = browser.open()
    before = Browser(browser)
    browser.send(fields)
    assert before.send(fields)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_a_log_in_between_page_and_post(site: Stage, browser: Browser) -> None:
    """The key is of the one who opened the page: the new one is asked, nothing is lost and nothing is done."""
    user = User.objects.create(pk=4711, username="somebody")
    fields = browser.open() | {"name": "typed"}
    browser.client.force_login(user)
    response = browser.send(fields)
    assert (response.status_code, site.effects) == (409, 0)
    again = browser.send(hidden_fields(response.content.decode()) | {"name": "typed"})
    assert (again.status_code, site.effects) == (302, 1)
    user.delete()


def test_a_page_may_be_the_last_word(site: Stage, browser: Browser) -> None:
    """By ``keep()``, or as htmx goes elsewhere. The key of the form counts before a header that Firefox adds."""
    moves_on = HttpResponse("", headers={"HX-Redirect": "/made/1/"})
    for answer, during in ((page, lambda request: request.idempotency.keep()), (lambda request: moves_on, bool)):
        site.answer, site.during = answer, during
        fields = browser.open()
        first, second = (browser.send(fields, headers={"Idempotency-Key": f'"{number}"'}) for number in range(2))
        assert first.content == second.content
        assert first.get("HX-Redirect") == second.get("HX-Redirect")
    assert site.effects == 2


# -- the page that waits for the first request


@pytest.mark.parametrize(("alias", "shape"), [("postgres", "form"), ("postgres", "atomic_form"), ("mariadb", "form")])
def test_a_person_waits_on_a_page_that_sends_the_form_again(site: Stage, browser: Browser, shape: str) -> None:
    """With the same key and the same data, until there is an answer; a stranger's form is not the same."""
    fields = browser.open(shape) | {"name": "a <&>", "publish": ""}
    twin, stranger = Browser(browser), Browser()
    with Running(site, lambda: browser.send(fields, shape)):
        for sent in (fields, fields):
            page = twin.send(sent, shape)
            assert (page.status_code, page["Retry-After"]) == (409, "2")
            assert "Still working" in page.text
            assert 'data-distlock-again="2"' in page.text
        again = hidden_fields(page.text) | {"name": "a <&>"}
        strange = {**again, "csrfmiddlewaretoken": stranger.open(shape)["csrfmiddlewaretoken"]}
        assert "Still working" not in stranger.send(strange, shape).text
        del again["csrfmiddlewaretoken"]
        assert twin.send(again, shape).status_code == 403
        secret = twin.send(fields | {"password": "hunter2"}, shape)
        assert "<form" not in secret.text
    again = hidden_fields(page.text) | {"name": "a <&>"}
    done = twin.send(again, shape)
    assert (done.status_code, done["Location"], done["Idempotency-Replayed"]) == (302, "/made/1/", "true")
    assert site.effects == 1


def test_changed_data_while_the_first_is_saved(site: Stage, browser: Browser, settings: Any) -> None:
    """What still runs is not said to be saved: it may yet end as the form with its errors."""
    change(settings, FORM_WAIT=0.05)
    fields = browser.open()
    twin = Browser(browser)
    with Running(site, lambda: browser.send(fields | {"name": "a"})):
        changed = twin.send(fields | {"name": "b"})
    assert changed.status_code == 422
    for text in ("Still being saved", "Submit as new", "has not been saved"):
        assert text in changed.text
    assert "Already saved" not in changed.text
    assert "Already saved" in browser.send(fields | {"name": "b"}).text
    assert (site.effects, states(site.alias)) == (1, ["completed"])


# -- addresses


def action_of(text: str) -> str:
    return html.unescape(re.findall(r'<form method="post" action="([^"]*)"', text)[0])


def stays(address: str) -> bool:
    """Would a browser stay on the site? It takes a backslash for a slash."""
    return urlsplit(urljoin("http://site.example/", address.replace("\\", "/"))).netloc == "site.example"


@pytest.mark.parametrize("path", ["//evil.example/order/", "/\\evil.example/order/"])
def test_forms_and_pages_stay_on_the_site(site: Stage, browser: Browser, path: str) -> None:
    """Naive code writes the path as it came into the action: token, key and fields go to another host."""

    def send(who: Browser, name: str) -> Any:
        return who.client.post("/", fields | {"name": name}, PATH_INFO=path)  # the client takes two slashes for a host

    fields = hidden_fields(browser.client.get("/", PATH_INFO=path).content.decode().split("<form")[1])
    twin = Browser(browser)
    with Running(site, lambda: send(browser, "a")):
        assert stays(action_of(send(twin, "a").text))
    text = send(browser, "b").content.decode()
    action = action_of(text)
    assert stays(action), action
    assert browser.client.post(action, hidden_fields(text) | {"name": "b"}).status_code == 302
