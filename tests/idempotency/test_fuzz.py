"""No input of a client is answered 500: tests of every parser that reads a request before the view."""

from __future__ import annotations

import asyncio
import io
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import AsyncClient, Client
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.idempotency.world import Browser, Stage

pytestmark = pytest.mark.tier2

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# What is nearly right finds more than what is random.
CHARSETS = (
    *("utf-8", "utf-16", "utf-7", "latin-1", "rot13", "base64", "hex", "zlib", "idna", "punycode", "undefined"),
    *("mbcs", "unicode_escape", "raw_unicode_escape", "utf-8-sig", "no-such", "", '"'),
)
KINDS = (
    *("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"),
    *("application/vnd.api+json", "multipart/form-data; boundary=xx", "+json", ""),
)
BOUNDARIES = ("", "; boundary=xx", "; boundary=", '; a="', "; boundary=" + "x" * 300)
TYPES = st.one_of(
    st.builds("{}; charset={}{}".format, *map(st.sampled_from, (KINDS, CHARSETS, BOUNDARIES))),
    st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), max_size=60),
)
NUMBERS = st.sampled_from(
    ["1e99999999999999999999", "-1E-99999999999999999999", "1" * 5000, "1e400", "NaN", "-0", "1e"]
)
WRONG_JSON = (b"[" * 100_000, b'{"a":' * 50_000, b'"\\ud800"', b'{"\\udc00":1}', b"\xff\xfe{\x00", b"\xef\xbb\xbf{}")
JSON = st.one_of(
    st.builds(lambda number: f'{{"a":{number}}}'.encode(), NUMBERS),
    st.sampled_from(WRONG_JSON),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.text(max_size=5), NUMBERS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ).map(lambda value: repr(value).encode("utf-8", "surrogatepass")),
)
PART = b"Content-Disposition: form-data"
HEADS = (
    *(PART, b"", PART + b'; name="a"', PART + b"; name*=no-such''a", b"Content-Transfer-Encoding: base64"),
    PART + b"; name=\"f\"; filename*=rot13''a%ff",
    PART + b'; name="f"; filename="../a\x00"\r\nContent-Type: a; charset=no-such',
    PART + b'; name="_idempotency_key"',
    PART + b'; name="b"\r\nContent-Transfer-Encoding: base64',
)
PARTS = st.builds(b"--xx\r\n%b\r\n\r\n%b\r\n".__mod__, st.tuples(st.sampled_from(HEADS), st.binary(max_size=20)))
ENDS = st.sampled_from([b"--xx--", b"", b"--xx"])
MULTIPART = st.builds(lambda parts, end: b"".join(parts) + end, st.lists(PARTS, max_size=4), ENDS)
NAMES = st.sampled_from([b"name", b"_idempotency_key", b"\xff"])
FORMS = st.dictionaries(NAMES, st.binary(max_size=30), max_size=3).map(
    lambda fields: b"&".join(k + b"=" + quote_from_bytes(v).encode() for k, v in fields.items())
)
BODIES = st.one_of(st.binary(max_size=50), JSON, MULTIPART, FORMS)
LATIN = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40)
KEYS = st.one_of(LATIN, st.just("x" * 300), st.sampled_from(['"a"', '"', "a", "1"]))
LENGTHS = st.sampled_from([None, None, None, "", "-1", "0", "abc", "1_0", "9" * 5000, "٣"])
QUERIES = st.one_of(
    st.binary(max_size=30).map(lambda raw: quote_from_bytes(raw, safe="&=;+")),
    st.just("&".join(f"f{n}=1" for n in range(1100))),
)
HEADERS = ["Authorization", "Accept", "Accept-Encoding", "Content-Encoding", "Cookie", "X-Event", "HX-Request"]
WORDS = st.dictionaries(st.sampled_from(HEADERS), LATIN, max_size=3)
SHAPES = ["plain", "decorated", "atomic", "exempt_of_csrf", "webhook", "anonymous", "excluding"]
METHODS = ["POST", "POST", "PUT", "GET"]


def send(shape: str, method: str, body: bytes, kind: str, query: str, headers: Any, length: str | None) -> int:
    """The status; 500 too where Django cannot even make a request of it (a charset that is no text, with a query)."""
    client = Client(raise_request_exception=False)
    more: dict[str, Any] = {"QUERY_STRING": query, "wsgi.input": io.BytesIO(body)}
    more |= {} if length is None else {"CONTENT_LENGTH": length}
    try:
        return client.generic(method, f"/{shape}/", body, kind, headers=headers, **more).status_code
    except (LookupError, ValueError, SuspiciousOperation):
        return 500


# Django decodes the query by the charset of the client, and Python warns of what unicode_escape finds there.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@FUZZ
@given(st.sampled_from(SHAPES), st.sampled_from(METHODS), BODIES, TYPES, KEYS, QUERIES, WORDS, LENGTHS)
@example("plain", "POST", b'{"a":1e99999999999999999999}', "application/json", "k", "", {}, None)
@example("plain", "POST", b"{}", "application/json; charset=rot13", "k", "a=1", {}, None)
@example("plain", "POST", b"{}", "application/json; charset=unicode_escape", "k", "a=\\8", {}, None)
def test_no_request_is_a_server_error(
    site: Stage, shape: str, method: str, body: bytes, kind: str, key: str, query: str, headers: Any, length: str | None
) -> None:
    """What Django itself cannot read is Django's error: with a key it is never worse than without."""
    known = {"Authorization": "Bearer a", "Idempotency-Key": key} | headers
    status = send(shape, method, body, kind, query, known, length)
    if status >= 500:
        plain = {name: value for name, value in headers.items() if name != "X-Event"}
        bare = send("exempt", method, body, kind, query, plain, length)
        assert bare >= 500, f"{status} with the key, {bare} without"


SURROGATE = b'--xx\r\nContent-Disposition: form-data; name="_idempotency_key"\r\n\r\n\\ud800\r\n--xx--'


@FUZZ
@given(BODIES, TYPES.filter(str.isascii))
@example(SURROGATE, "multipart/form-data; boundary=xx; charset=unicode_escape")
def test_under_asgi_neither(site: Stage, body: bytes, kind: str) -> None:
    headers = {"Authorization": "a", "Idempotency-Key": str(random.random())}
    client = AsyncClient(raise_request_exception=False)
    assert asyncio.run(client.generic("POST", "/exempt_of_csrf/", body, kind, headers=headers)).status_code < 500


@FUZZ
@given(st.dictionaries(st.sampled_from(["_idempotency_key", "name", "\ud800"]), st.text(max_size=40), max_size=3))
def test_no_form_is_a_server_error(site: Stage, browser: Browser, fields: dict[str, str]) -> None:
    data = browser.open() | {k.encode("utf-8", "replace").decode(): v for k, v in fields.items()}
    assert browser.send(data).status_code < 500


def test_a_form_with_a_lone_surrogate(site: Stage, browser: Browser) -> None:
    """Its charset is what it says; the page that repeats its fields has to be written all the same."""
    fields = browser.open()
    kind = "multipart/form-data; boundary=xx; charset=raw_unicode_escape"
    statuses = []
    for value in ("a", "\\ud800"):
        parts = [f'name="{name}"\r\n\r\n{text}\r\n' for name, text in [*fields.items(), ("name", value)]]
        body = "".join(f"--xx\r\nContent-Disposition: form-data; {part}" for part in parts) + "--xx--"
        statuses.append(browser.client.post("/form/", body, content_type=kind).status_code)
    assert statuses == [302, 422]
