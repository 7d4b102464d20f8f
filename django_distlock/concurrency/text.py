"""Untrusted text: one harmless line of it for logs, terminals and pages, and names that suggest a secret."""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"
# The words in the names of form fields that hold secrets.
_WORDS = (
    "pass|pwd|pw|pin|puk|otp|totp|hotp|mfa|tan|mtan|iban|ssn|cvc|cvv|cvn|csc|card|mdp|senha|clave|parola|sort_code"
    "|geheimzahl|kontonummer|cc_(?:exp|csc)"
    "|(?:social_security|social_insurance|tax|account|routing|konto|cc)_(?:number|num|no|nr|id)"
)
_PARTS = (
    "password|passwd|passphrase|passcode|passwort|kennwort|motdepasse|contrasen|wachtwoord|losenord|adgangskode|salasana"
    "|credential|credit_?card|debit_?card|card_?num|card_?no_|cc_?num|cvc|cvv|token|secret(?!ar)|2_?fa_"
    "|(?:api|private|secret|access|auth|encryption|signing|signature|license|recovery)_?key"
    "|(?:security|verification|verify|auth|access|login|recovery|backup|one_?time|sms)_?code"
    "|mot_de_passe|authenticator|social_?security|account_?number"
)
_SECRET = re.compile(f"_(?:{_WORDS})s?_|(?:{_PARTS})")
_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[0-9])(?=[^0-9])|(?<=[^0-9])(?=[0-9])|[\W_]+")


def one_line(value: object, longest: int | None = None) -> str:
    """``str(value)`` with all that is not printable as an escape: line ends, ESC, bidi controls, surrogates.

    The escapes are those of ``repr()``. A text of more than ``longest`` characters is cut.
    """
    text = str(value)
    if longest is not None and len(text) > longest:
        return one_line(text[:longest]) + ELLIPSIS
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def is_secret(name: str) -> bool:
    """Does the name of this form field suggest a secret?

    A name is split into words at capitals and non-letters: ``newPass1`` has the words "new" and "pass". Short terms
    must be whole words, so that "pin" matches ``user_pin`` and not ``shipping``; long terms match anywhere.
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return _SECRET.search(f"_{_BOUNDARY.sub('_', plain).strip('_').lower()}_".replace("__", "_")) is not None
