"""The stored form of answers and finished phases: JSON, which is encrypted if ``ENCRYPT`` is set.

Encryption is AES-256-GCM of the package ``cryptography``. HKDF derives the keys from SECRET_KEY (for reading also from
SECRET_KEY_FALLBACKS) and from the scope of the record: the content of one row cannot be read in another row, and no key
is used so often that two random nonces could meet.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.encoding import force_bytes

from django_distlock.idempotency.conf import config, secret_keys
from django_distlock.idempotency.records import COMPLETED, STATES, UNKNOWN, Record, StoredResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "sealed:"  # no JSON begins with it
NONCE = 12  # bytes
SALT = b"django_distlock.idempotency.sealing"


class Unreadable(ValueError):
    """The text was changed, or its key is no longer among SECRET_KEY and SECRET_KEY_FALLBACKS."""


def require_cryptography() -> None:
    """Raise ImproperlyConfigured if answers are to be encrypted and the package is missing.

    Called before the view acts.
    """
    if not config().encrypt:
        return
    try:
        import cryptography  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise ImproperlyConfigured(
            'DISTLOCK_IDEMPOTENCY["ENCRYPT"] needs the package cryptography: '
            "pip install 'django-distlock[encryption]'."
        ) from error


def encode_answer(scope: str, answer: StoredResponse) -> tuple[str, bytes | None]:
    """The stored form of an answer: everything but the body as text, and the body."""
    marks = {"marks": answer.marks} if answer.marks else {}
    facts = json.dumps({"status": answer.status, "headers": answer.headers, "messages": answer.messages, **marks})
    if not config().encrypt:
        return facts, answer.body
    body = None if answer.body is None else _encrypt(scope, "body", answer.body)
    return _text(_encrypt(scope, "facts", facts.encode())), body


def decode_answer(scope: str, facts: str, body: bytes | None) -> StoredResponse:
    """The stored answer, encrypted or not. ValueError if it cannot be read."""
    if facts.startswith(MARK):
        facts = _decrypt(scope, "facts", _bytes(facts)).decode()
        body = None if body is None else _decrypt(scope, "body", body)
    try:
        found = json.loads(facts)
        return StoredResponse(
            status=int(found["status"]),
            headers=tuple((str(name), str(value)) for name, value in found["headers"]),
            body=body,
            messages=tuple((int(a), str(b), str(c), bool(d)) for a, b, c, d in found["messages"]),
            marks=dict(found.get("marks", {})),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("This is no stored answer.") from error


def encode_phases(scope: str, phases: str) -> str:
    """The stored form of finished phases, which are given as JSON."""
    return _text(_encrypt(scope, "phases", phases.encode())) if config().encrypt else phases


def decode_phases(scope: str, text: str) -> dict[str, Any]:
    """The stored phases, encrypted or not. ValueError if they cannot be read."""
    found = json.loads(_decrypt(scope, "phases", _bytes(text)) if text.startswith(MARK) else text)
    if not isinstance(found, dict):
        raise ValueError("These are no phases.")
    return found


def decode_record(row: Sequence[Any]) -> Record:
    """The record that a storage has read: scope, state, owner, fingerprint, expired, facts, body and phases.

    A record with an unknown state, or with phases that cannot be read, must not run again: until its lifetime ends it
    counts as broken off. A completed one whose answer cannot be read counts as completed.
    """
    scope, state, owner, fingerprint, expired, facts, body, phases = row
    answer = finished = None
    with suppress(ValueError):
        answer = None if facts is None else decode_answer(scope, facts, None if body is None else bytes(body))
    with suppress(ValueError):
        finished = decode_phases(scope, phases)
    if state not in STATES or (finished is None and state != COMPLETED):
        state, expired = UNKNOWN, False
    return Record(
        scope=scope,
        state=state,
        owner=owner,
        fingerprint=fingerprint,
        expired=bool(expired),
        answer=answer,
        phases=finished or {},
    )


def _encrypt(scope: str, part: str, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE)
    return nonce + AESGCM(_key(scope, secret_keys()[0])).encrypt(nonce, plain, part.encode())


def _decrypt(scope: str, part: str, sealed: bytes) -> bytes:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise Unreadable("The package cryptography is not installed.") from error
    for secret in secret_keys():
        try:
            return AESGCM(_key(scope, secret)).decrypt(sealed[:NONCE], sealed[NONCE:], part.encode())
        except (InvalidTag, ValueError):  # ValueError: the text is too short
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
