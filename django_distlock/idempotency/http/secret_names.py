"""Which fields of a form hold secrets, judged by the words in their names. Standard library only.

A name is split into words, at capitals and at whatever is no letter: ``newPass1`` has the words "new" and "pass". Short
terms must be whole words, so that "pin" is found in ``user_pin`` and not in ``shipping``. Long ones may stand anywhere.
"""

from __future__ import annotations

import re
import unicodedata

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


def is_secret(name: str) -> bool:
    """Does a field of this name look as if it held a secret?"""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return _SECRET.search(f"_{_BOUNDARY.sub('_', plain).strip('_').lower()}_".replace("__", "_")) is not None
