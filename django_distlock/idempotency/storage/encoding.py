"""The stored form of answers and finished phases, which is encrypted if ``ENCRYPT`` is set.

An answer is one line of JSON and, unless it is a tombstone, its body. Encryption is Fernet of the package
``cryptography`` (AES-128-CBC with HMAC-SHA256), with keys from SECRET_KEY and, for reading, SECRET_KEY_FALLBACKS. The
scope of the record is inside the encrypted text: what is copied into another row cannot be read there.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.crypto import salted_hmac

from django_distlock.idempotency.conf import config, settings
from django_distlock.idempotency.records import COMPLETED, STATES, UNKNOWN, Record, StoredResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

ENCRYPTED_PREFIX = b"encrypted:"  # no JSON begins with it
SALT = "django_distlock.idempotency.encryption"


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


def stored(scope: str, values: dict[str, Any]) -> dict[str, Any]:
    """The stored form of fields of a record: answer and phases are encoded, and an answer has its status beside it."""
    found = dict(values)
    if "answer" in values:
        answer: StoredResponse | None = values["answer"]
        found["status"] = None if answer is None else answer.status
        found["answer"] = None if answer is None else _encoded(scope, "answer", _plain(answer))
    if "phases" in values:
        found["phases"] = _encoded(scope, "phases", values["phases"].encode()).decode()
    return found


def record_of(row: Sequence[Any]) -> Record:
    """The record that a storage has read: scope, state, owner, fingerprint, expired, answer and phases.

    If the state or the phases cannot be read, the record is treated as UNKNOWN: it is never run again. A completed one
    whose answer cannot be read counts as completed.
    """
    scope, state, owner, fingerprint, expired, answer, phases = row
    response = finished = None
    with suppress(ValueError):
        response = None if answer is None else _answer(_decoded(scope, "answer", bytes(answer)))
    with suppress(ValueError):
        finished = _phases(_decoded(scope, "phases", phases.encode()))
    if state not in STATES or (finished is None and state != COMPLETED):
        state, expired = UNKNOWN, False
    return Record(
        scope=scope,
        state=state,
        owner=owner,
        fingerprint=fingerprint,
        expired=bool(expired),
        answer=response,
        phases=finished or {},
    )


def _plain(answer: StoredResponse) -> bytes:
    line = json.dumps({"status": answer.status, "headers": answer.headers, "messages": answer.messages}).encode()
    return line if answer.body is None else line + b"\n" + answer.body


def _answer(text: bytes) -> StoredResponse:
    line, newline, body = text.partition(b"\n")
    try:
        found = json.loads(line)
        return StoredResponse(
            status=int(found["status"]),
            headers=tuple((str(name), str(value)) for name, value in found["headers"]),
            body=body if newline else None,
            messages=tuple((int(a), str(b), str(c), bool(d)) for a, b, c, d in found["messages"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("This is no stored answer.") from error


def _phases(text: bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("These are no phases.")
    return found


def _encoded(scope: str, part: str, plain: bytes) -> bytes:
    if not config().encrypt:
        return plain
    return ENCRYPTED_PREFIX + bytes(_fernet().encrypt(_head(scope, part) + plain))


def _decoded(scope: str, part: str, text: bytes) -> bytes:
    """The plain text, encrypted or not. ValueError if no key opens it, or if it belongs to another record."""
    if not text.startswith(ENCRYPTED_PREFIX):
        return text
    try:
        from cryptography.fernet import InvalidToken
    except ImportError as error:
        raise ValueError("The package cryptography is not installed.") from error
    try:
        plain = bytes(_fernet().decrypt(text.removeprefix(ENCRYPTED_PREFIX)))
    except InvalidToken as error:
        raise ValueError("The text was changed, or its key is retired.") from error
    head = _head(scope, part)
    if not plain.startswith(head):
        raise ValueError("The text belongs to another record.")
    return plain.removeprefix(head)


def _head(scope: str, part: str) -> bytes:
    return f"{scope} {part}\n".encode()


def _fernet() -> Any:
    from cryptography.fernet import Fernet, MultiFernet

    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = [salted_hmac(SALT, "", secret=secret, algorithm="sha256").digest() for secret in secrets]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])
