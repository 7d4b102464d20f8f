"""What people do: press twice, go back, correct errors, log in between, open two tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse

from django_distlock.idempotency.http.responses import is_secret
from tests.idempotency.world import hidden_fields, page, redirect, states

if TYPE_CHECKING:
    from tests.idempotency.world import Browser, Stage

BOTH = pytest.mark.parametrize("shape", ["form", "atomic_form"])
SECRET = """
password password1 newPassword user-password passwd pwd pwd2 userPwd new_pass pass pass1 passphrase passcode pw
form-0-pin pin PIN newPIN pin_code otp otp_code totp mfa_code 2fa 2fa_code tan mTAN iban IBAN debit_iban ssn
social_security_number cc_number cc-number ccnumber cc_exp cc-csc cardnumber card_number credit-card
creditCardNumber card cvc cvv cvv2 cvc_code security_code securityCode verification_code one_time_code oneTimeCode
recovery_code api_key apiKey APIKey api-key apikey private_key secret_key access_key client_secret secret secrets
token access_token authToken tokens credential credentials kennwort passwort neues_passwort mot_de_passe motdepasse
mdp contraseña contrasena senha clave_secreta wachtwoord parola sort_code account_number routing_number kontonummer
geheimzahl signature_key
"""
HARMLESS = """
name email shipping shipping_address opinion spin spinner pinned pinterest pineapple happiness compass bypass
passenger passenger_name passport_country passage surpass tangent tank instant botany town photo_option hotplate
stopwatch urban caribbean cubic arabic mission lesson session_date classname discard wildcard scorecard cardinal
cardiology secretary secretariat cc bcc code promo_code postal_code zip_code country_code language keyboard monkey
keyword key description comment quantity access_notes private_note account accounting login_hint pwa depth
sort_order verified_at tokyo assignment signature_date expiry_date cc_recipients
"""


@pytest.mark.parametrize(
    ("alias", "shape"), [("default", "form"), ("default", "atomic_form"), ("postgres", "form"), ("mariadb", "form")]
)
def test_a_button_pressed_twice_acts_once(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape) | {"name": "a"}
    first, second = (browser.send(fields, shape, follow=True) for _ in range(2))
    assert first.redirect_chain == second.redirect_chain == [("/made/1/", 302)]
    assert site.effects == 1


def test_two_forms_on_a_page_have_a_key_each_for_their_address(site: Stage, browser: Browser) -> None:
    fields = browser.open(form=1)
    for _ in range(2):
        assert browser.send(fields, "elsewhere").status_code == 302
    assert site.effects == 1
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
    """Judged by the words in their names. Naive code looks for "password" and a few more: 12 of 15 such names came back
    as hidden fields."""
    assert [name for name in SECRET.split() if not is_secret(name)] == []
    assert [name for name in HARMLESS.split() if is_secret(name)] == []
    fields = browser.open()
    browser.send(fields | {"name": "a"})
    photo: Any = SimpleUploadedFile("a.txt", b"x")
    for more in ({"password": "hunter2"}, {"api_key": "hunter2"}, {"kennwort": "hunter2"}, {"photo": photo}):
        html = browser.send(fields | {"name": "b"} | more).content.decode()
        assert "has not been saved" in html
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
    assert read == [b"one"], "the view does not get the file from its beginning"


def test_a_message_is_shown_again_but_not_doubled(site: Stage, browser: Browser) -> None:
    """The first answer never arrived: its cookie of messages did not either."""
    fields = browser.open()
    lost = browser.send(fields)
    assert [str(m) for m in get_messages(lost.wsgi_request)] == ["Saved."]
    waits = browser.send(fields)
    assert [str(m) for m in get_messages(waits.wsgi_request)] == ["Saved."]
    del browser.client.cookies["messages"]
    again = browser.send(fields)
    assert [(str(m), m.level_tag) for m in get_messages(again.wsgi_request)] == [("Saved.", "success")]


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
    before = dict(browser.client.cookies)
    browser.send(fields)
    browser.client.cookies.clear()
    browser.client.cookies.update(before)
    assert browser.send(fields)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_a_log_in_between_page_and_post(site: Stage, browser: Browser) -> None:
    """The key is of the one who opened the page: the new one is asked, nothing is lost and nothing is done."""
    user = User.objects.create(pk=4711, username="somebody")
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
    """By ``keep()``, or as htmx goes elsewhere. And the key of the form counts before the header: Firefox can add its
    own, with a new key for each press of the button."""
    moves_on = HttpResponse("", headers={"HX-Redirect": "/made/1/"})
    for answer, during in ((page, lambda request: request.idempotency.keep()), (lambda request: moves_on, bool)):
        site.answer, site.during = answer, during
        fields = browser.open()
        first, second = (browser.send(fields, headers={"Idempotency-Key": f'"{number}"'}) for number in range(2))
        assert first.content == second.content
        assert first.get("HX-Redirect") == second.get("HX-Redirect")
    assert site.effects == 2
