"""The decisions, as functions over values: which key, which scope, the same request or another, run it or answer it.

Standard library only; no clock, no request object, no storage.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from .records import CLAIMED, COMPLETED, FAILED, UNKNOWN, Answer, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MAX_KEY_LENGTH = 255
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# The client may have done nothing wrong, or will be let in later: these answers are not the last word.
PASSING = frozenset({401, 403, 408, 409, 423, 425, 429})
KEPT_HEADERS = frozenset(
    {
        # content-encoding: the body of a view that compresses it itself cannot be read without.
        *("content-type", "content-encoding", "location", "etag", "link", "content-disposition", "content-language"),
        # What a view forbids the browser to do with its answer, it forbids for the replay too.
        *("content-security-policy", "content-security-policy-report-only", "permissions-policy", "referrer-policy"),
        *("cross-origin-opener-policy", "cross-origin-embedder-policy", "cross-origin-resource-policy"),
        *("x-frame-options", "x-content-type-options"),
    }
)
KEPT_PREFIX = "hx-"
_BARE = re.compile(r"[!-~]+")
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')


class BadKey(ValueError):
    """The key is not one that is taken; the message says why, ``status`` and ``code`` are those of the answer.

    ``text`` and ``values`` are the parts of the message, for an answer in the language of the client.
    """

    def __init__(self, text: str, *values: object, status: int = 400, code: str = "bad_key") -> None:
        super().__init__(text % values if values else text)
        self.text, self.values = text, values
        self.status, self.code = status, code


def gettext_noop(text: str) -> str:
    """Marks a text for ``makemessages``, as Django's function of that name does; ``answers`` translates it."""
    return text


def parse_header(raw: str) -> str:
    """The key in the value of an ``Idempotency-Key`` header, bare or quoted (RFC 8941 string). :exc:`BadKey` if it is
    empty, has more than 255 characters or other than visible ASCII, or is more than one value."""
    if len(raw) > 2 * MAX_KEY_LENGTH + 2:  # before anything looks at each character
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
    """Where a key counts: one site, one host or tenant, one principal, one method, one route."""
    return keyed(site_key, "scope", tenant, principal, method, route, key)


def derived_key(site_key: str, scope: str, name: str) -> str:
    """The key for another service that this request calls: the same each time the request arrives."""
    return keyed(site_key, "derived", scope, name)


def fingerprint_of(
    site_key: str,
    *,
    method: str,
    route: str,
    path: str,
    query: Iterable[tuple[str, str]],
    body: Iterable[bytes],
) -> str:
    """What makes two requests the same one."""
    # Names in any order; of values of one name the order counts: a view that asks for one gets the last.
    pairs = sorted(query, key=lambda pair: pair[0])
    parts: list[str | bytes] = [method, route, path, canonical_json(pairs), *body]
    return keyed(site_key, "fingerprint", *parts)


def canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    # as written, not as the nearest double; NaN, which no JSON has, tells it from a string
    return [math.nan, str(value)] if isinstance(value, Decimal) else str(value)


# Before a body that is compared by its bytes: no JSON that was written anew begins so.
RAW = b"\x00"


def json_body(raw: bytes, exclude: Collection[str] = ()) -> bytes:
    """The same bytes for the same JSON, in whatever order its members come; the bytes themselves, marked as such, if it
    is none, or none on which all parsers agree."""
    try:
        found = json.loads(raw, parse_float=Decimal, parse_constant=_refused, object_pairs_hook=_members)
    except (ValueError, ArithmeticError, RecursionError):  # arithmetic: an exponent that Decimal does not take
        return RAW + raw
    if isinstance(found, dict):
        found = {name: value for name, value in found.items() if name not in exclude}
    try:
        return canonical_json(found).encode("utf-8", "surrogatepass")
    except RecursionError:
        return RAW + raw


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON.")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("Two members have the same name.")
    return found


def form_body(fields: Mapping[str, list[str]], exclude: Collection[str] = ()) -> bytes:
    """The fields of a form; the order of values of one name counts. The pressed button is one of them."""
    pairs = [(name, values) for name, values in sorted(fields.items()) if name not in exclude]
    return canonical_json(pairs).encode("utf-8", "surrogatepass")


def file_part(field: str, name: str, kind: str, size: int, digest: str) -> bytes:
    """An uploaded file; ``kind`` is its content type."""
    return canonical_json([field, name, kind, size, digest]).encode("utf-8", "surrogatepass")


class Verdict(Enum):
    """What to do with a request whose key is there already."""

    TAKE_OVER = "take over"  # nobody has it any more: it may run again
    REPLAY = "replay"
    TOMBSTONE = "tombstone"  # done, and the answer is not kept
    MISMATCH = "mismatch"
    IN_FLIGHT = "in flight"
    CRASHED = "crashed"  # the claim ran out: what on_crash says
    HELD = "held"  # it ran out, and a person has to look


def judge(record: Record, fingerprint: str) -> Verdict:
    """What ``record`` means for a request with this fingerprint."""
    if record.state == FAILED or (record.expired and record.state != CLAIMED):
        return Verdict.TAKE_OVER
    if not record.fingerprint:  # it cannot be read
        return Verdict.HELD
    if not hmac.compare_digest(record.fingerprint, fingerprint):
        # whose first request crashed has nothing to be compared with
        return Verdict.CRASHED if record.expired else Verdict.MISMATCH
    if record.state == COMPLETED:
        answer = record.answer
        return Verdict.TOMBSTONE if answer is None or answer.body is None else Verdict.REPLAY
    if record.state == UNKNOWN:
        return Verdict.HELD
    return Verdict.CRASHED if record.expired else Verdict.IN_FLIGHT


class Ending(Enum):
    """What becomes of the key when the view has answered."""

    KEEP = "keep"
    RELEASE = "release"
    ROLL_BACK = "roll back"  # release, and nothing that the view wrote stays


def ending_of(
    status: int, *, form: bool, moves_on: bool = False, trusted: bool = True, to_login: bool = False
) -> Ending:
    """Which answers are the last word.

    ``form``: the key came with a form: a redirect is the last word, and a page is the form with its errors.
    ``moves_on``: the answer tells htmx to go elsewhere. ``trusted``: somebody has checked who asks; where nobody has,
    a refusal must not be kept: who forged a request would have used up the key of the real one, and who makes up
    tokens would fill the table. ``to_login``: the way to the log-in is a refusal; but a form may end there.
    """
    if status >= 500:
        return Ending.ROLL_BACK
    if form:
        return Ending.KEEP if 300 <= status < 400 or status in (201, 202, 204) or moves_on else Ending.RELEASE
    if (200 <= status < 400 and (trusted or not to_login)) or (trusted and status not in PASSING):
        return Ending.KEEP
    return Ending.RELEASE


def kept_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Those of the list. Never a cookie."""
    return tuple(
        (name, value) for name, value in headers if name.lower() in KEPT_HEADERS or name.lower().startswith(KEPT_PREFIX)
    )


def answer_of(
    status: int,
    headers: Iterable[tuple[str, str]],
    body: bytes | None,
    messages: Iterable[tuple[int, str, str, bool]] = (),
    max_body: int = 256 * 1024,
    marks: Mapping[str, Any] | None = None,
) -> Answer:
    """What is kept of a response; of a body that is streamed (None) or too large, a tombstone. ``marks`` are other
    facts that a replay needs, which JSON has to carry: without them it may say less than the view did, so a tombstone
    is left."""
    if body is not None and len(body) > max_body:
        body = None
    try:
        carried = json.loads(json.dumps(marks or {}, default=_listed))
    except (TypeError, ValueError):
        carried, body = {}, None
    return Answer(status=status, headers=kept_headers(headers), body=body, messages=tuple(messages), marks=carried)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be kept.")


def accepts(header: str, encoding: str) -> bool:
    """Does ``Accept-Encoding`` allow this content encoding? RFC 9110, 12.5.3; None that is given means identity."""
    weights: dict[str, str] = {}
    for part in header.lower().split(","):
        name, _, parameter = part.partition(";")
        weights[name.strip()] = parameter.replace(" ", "")
    weight = weights.get(encoding.strip().lower(), weights.get("*"))
    return weight is not None and re.fullmatch(r"q=0(\.0*)?", weight) is None


def pause(attempt: int) -> float:
    """Seconds until a waiter looks again: 20 ms, then more, at most 250 ms."""
    return float(min(0.25, 0.02 * 1.5**attempt))
