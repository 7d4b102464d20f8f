"""Decisions as functions over values: the key, the scope, the fingerprint, and what to do with a record or an answer.

Standard library only: no clock, no request object, no storage.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from decimal import Decimal
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .records import CLAIMED, COMPLETED, FAILED, UNKNOWN, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_KEY_LENGTH = 255
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Answers that a repeated request need not get again: the client may be let in later.
PASSING = frozenset({401, 403, 408, 409, 423, 425, 429})
KEPT_HEADERS = frozenset(
    {
        # content-encoding: without it a body that the view has compressed cannot be read
        *("content-type", "content-encoding", "location", "etag", "link", "content-disposition", "content-language"),
        # what a view forbids the browser to do with its answer holds for the replay too
        *("content-security-policy", "content-security-policy-report-only", "permissions-policy", "referrer-policy"),
        *("cross-origin-opener-policy", "cross-origin-embedder-policy", "cross-origin-resource-policy"),
        *("x-frame-options", "x-content-type-options"),
    }
)
KEPT_PREFIX = "hx-"
_BARE = re.compile(r"[!-~]+")
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')


def gettext_noop(text: str) -> str:
    """Mark a text for ``makemessages``, like Django's function of this name; ``http.responses`` translates it."""
    return text


class BadKey(ValueError):
    """The key is refused, and the message gives the reason; ``status`` and ``code`` are those of the answer.

    ``title``, ``text`` and ``values`` are the parts of the message, for an answer in the language of the client.
    """

    title = gettext_noop("This idempotency key cannot be used")

    def __init__(self, text: str, *values: object, status: int = 400, code: str = "bad_key") -> None:
        super().__init__(text % values if values else text)
        self.text, self.values = text, values
        self.status, self.code = status, code


class MissingKey(BadKey):
    """The request has no key, and needs one."""

    title = gettext_noop("The idempotency key is missing")

    def __init__(self) -> None:
        super().__init__(
            gettext_noop("This request needs an idempotency key, in the header Idempotency-Key or from the form."),
            code="missing_key",
        )


def parse_header(raw: str) -> str:
    """The key in the value of an ``Idempotency-Key`` header, bare or quoted (RFC 8941 string).

    :exc:`BadKey` for an empty key, more than 255 characters, other characters than visible ASCII, or several values.
    """
    if len(raw) > 2 * MAX_KEY_LENGTH + 2:  # before each character is examined
        raise BadKey(gettext_noop("The key is longer than %d characters."), MAX_KEY_LENGTH)
    value = raw.strip(" \t")
    if value.startswith('"'):
        match = _QUOTED.fullmatch(value)
        if match is None:
            raise BadKey(gettext_noop("The key is not one quoted string."))
        value = re.sub(r'\\(["\\])', r"\1", match[1])
    elif "," in value or '"' in value:
        raise BadKey(gettext_noop("There is more than one key."))
    return validate_key(value)


def validate_key(key: object) -> str:
    """``key`` if it is a str of 1 to 255 visible ASCII characters; else :exc:`BadKey`."""
    if not isinstance(key, str):
        raise BadKey(gettext_noop("The key must be a str, not %s."), type(key).__name__)
    if not key:
        raise BadKey(gettext_noop("The key is empty."))
    if len(key) > MAX_KEY_LENGTH:
        raise BadKey(gettext_noop("The key is longer than %d characters."), MAX_KEY_LENGTH)
    if _BARE.fullmatch(key) is None:
        raise BadKey(gettext_noop("The key has other characters than visible ASCII."))
    return key


def keyed(site_key: str, purpose: str, *parts: str | bytes) -> str:
    """64 hexadecimal digits: keyed BLAKE2b over length-prefixed parts, so that ("a", "bc") and ("ab", "c") differ."""
    secret = hashlib.blake2b(site_key.encode("utf-8", "surrogatepass")).digest()
    state = hashlib.blake2b(key=secret, digest_size=32, person=b"distlock-idempot")
    for part in (purpose, *parts):
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.hexdigest()


def scope_of(site_key: str, tenant: str, principal: str, method: str, route: str, key: str) -> str:
    """The scope of a key: one site, one host or tenant, one principal, one method, one route."""
    return keyed(site_key, "scope", tenant, principal, method, route, key)


def written(value: object) -> bytes:
    """Different bytes for different values; the same in each release of Python, unlike ``repr``."""
    return ascii(value).encode()


# Prefix of a body that is compared by its bytes; no other one begins with it.
RAW = b"\x00"


def json_body(raw: bytes, exclude: Collection[str] = ()) -> bytes:
    """The same bytes for the same JSON with its members in any order; numbers count as they are written.

    A body that is no JSON, or on which parsers disagree, is returned as it is, with a prefix.
    """
    try:
        found = json.loads(raw, parse_float=Decimal, parse_constant=Decimal, object_pairs_hook=_members)
        if isinstance(found, dict):
            found = {name: value for name, value in found.items() if name not in exclude}
        return written(found)
    except (ValueError, ArithmeticError, RecursionError):  # arithmetic: an exponent that Decimal refuses
        return RAW + raw


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(sorted(pairs, key=itemgetter(0)))
    if len(found) < len(pairs):
        raise ValueError("Two members have the same name.")
    return found


class Decision(Enum):
    """What to do with a request whose key has a record."""

    TAKE_OVER = "take over"  # the key is free: the request may run again
    ANSWERED = "answered"  # the answer may be stored without its body
    MISMATCH = "mismatch"
    IN_FLIGHT = "in flight"
    CRASHED = "crashed"  # the claim expired: on_crash decides
    HELD = "held"  # the claim expired, and an operator has to release the key


def judge(record: Record, fingerprint: str) -> Decision:
    """Judge what ``record`` means for a request with this fingerprint."""
    if record.state == FAILED or (record.expired and record.state != CLAIMED):
        return Decision.TAKE_OVER
    if not record.fingerprint:  # it cannot be read
        return Decision.HELD
    if not hmac.compare_digest(record.fingerprint, fingerprint):
        # after a crash there is no answer that other data could get by mistake
        return Decision.CRASHED if record.expired else Decision.MISMATCH
    if record.state == COMPLETED:
        return Decision.ANSWERED
    if record.state == UNKNOWN:
        return Decision.HELD
    return Decision.CRASHED if record.expired else Decision.IN_FLIGHT


def kept_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers of the list, and never a cookie."""
    return tuple(
        (name, value) for name, value in headers if name.lower() in KEPT_HEADERS or name.lower().startswith(KEPT_PREFIX)
    )


def pause(attempt: int) -> float:
    """Seconds until a waiter reads again: 20 ms at first, growing to 250 ms."""
    return float(min(0.25, 0.02 * 1.5**attempt))
