"""Encryption at rest: what a storage keeps of an answer and of finished phases, if ``ENCRYPT`` is set.

AES-256-GCM of the package ``cryptography``. The keys are derived by HKDF from SECRET_KEY, to read also from
SECRET_KEY_FALLBACKS, and from the scope of the record: what stands in one row cannot be read in another, and no key is
used often enough for two random nonces to meet.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.encoding import force_bytes

from django_distlock.idempotency.conf import config, secret_keys
from django_distlock.idempotency.records import Answer

MARK = "sealed:"  # JSON does not begin so
NONCE = 12  # bytes
SALT = b"django_distlock.idempotency.sealing"


class Unreadable(ValueError):
    """The key that it was sealed with is no longer among SECRET_KEY and SECRET_KEY_FALLBACKS, or it was changed."""


def require() -> None:
    """ImproperlyConfigured if answers are to be sealed and cannot be. Asked before the view has acted."""
    if not config().encrypt:
        return
    try:
        import cryptography  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise ImproperlyConfigured(
            'DISTLOCK_IDEMPOTENCY["ENCRYPT"] needs the package cryptography: '
            "pip install 'django-distlock[encryption]'."
        ) from error


def to_store(scope: str, answer: Answer) -> tuple[str, bytes | None]:
    """Facts and body of an answer as they are kept."""
    facts, body = answer.facts(), answer.body
    if not config().encrypt:
        return facts, body
    return _text(_seal(scope, "facts", facts.encode())), None if body is None else _seal(scope, "body", body)


def from_store(scope: str, facts: str, body: bytes | None) -> Answer:
    """The answer that was kept, sealed or not. ValueError if it cannot be read."""
    if not facts.startswith(MARK):
        return Answer.of(facts, body)
    plain = _unseal(scope, "facts", _bytes(facts)).decode()
    return Answer.of(plain, None if body is None else _unseal(scope, "body", body))


def phases_to_store(scope: str, phases: str) -> str:
    """Finished phases, as JSON, as they are kept."""
    return _text(_seal(scope, "phases", phases.encode())) if config().encrypt else phases


def phases_from_store(scope: str, text: str) -> dict[str, Any]:
    """The finished phases that were kept, sealed or not. ValueError if they cannot be read."""
    found = json.loads(_unseal(scope, "phases", _bytes(text)) if text.startswith(MARK) else text)
    if not isinstance(found, dict):
        raise ValueError("These are no phases.")
    return found


def _seal(scope: str, part: str, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE)
    return nonce + AESGCM(_key(scope, secret_keys()[0])).encrypt(nonce, plain, part.encode())


def _unseal(scope: str, part: str, sealed: bytes) -> bytes:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise Unreadable("The package cryptography is not installed.") from error
    for secret in secret_keys():
        try:
            return AESGCM(_key(scope, secret)).decrypt(sealed[:NONCE], sealed[NONCE:], part.encode())
        except (InvalidTag, ValueError):  # ValueError: too short to be anything
            continue
    raise Unreadable("No key opens it.")


def _key(scope: str, secret: str | bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, SALT, scope.encode()).derive(force_bytes(secret))


def _text(sealed: bytes) -> str:
    return MARK + base64.b64encode(sealed).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.removeprefix(MARK))
