"""Which fields a page never repeats: judged by the words in their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_distlock.idempotency.http.responses import is_secret
from tests.idempotency.test_forms import Browser
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

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


def test_names_of_secrets() -> None:
    assert [name for name in SECRET.split() if not is_secret(name)] == []


def test_names_that_only_look_so() -> None:
    assert [name for name in HARMLESS.split() if is_secret(name)] == []


@pytest.mark.parametrize("name", ["new_pass", "api_key", "iban", "kennwort"])
def test_the_page_does_not_repeat_it(site: Stage, name: str) -> None:
    """Naive code looks for "password" and a few more: 12 of 15 such names came back as hidden fields."""
    site.answer = redirect
    browser = Browser()
    fields = browser.open()
    browser.send(fields | {"name": "a"})
    html = browser.send(fields | {"name": "b", name: "hunter2"}).content.decode()
    assert "has not been saved" in html
    assert "hunter2" not in html
