"""The same key with other data is refused, however the body comes; and the view gets its body whole."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.test import Client, RequestFactory
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView

from django_distlock.idempotency import decisions
from django_distlock.idempotency.conf import Options
from django_distlock.idempotency.drf import IdempotentMixin
from django_distlock.idempotency.http.requests import body_of
from tests.idempotency.views import aact, act, copy_of, own
from tests.idempotency.world import Sender, Stage, change, states


class Framework(APIView):
    authentication_classes: ClassVar[Any] = ()

    def post(self, request: Any) -> Any:
        act(request._request)
        return Response({"amount": request.data.get("amount")}, status=201)


class Looks(BasePermission):
    """Reads the body before the mixin does."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return "amount" in request.data


class Mixed(IdempotentMixin, Framework):
    permission_classes: ClassVar[Any] = (Looks,)


urlpatterns = [
    path("exempt/", csrf_exempt(copy_of(act))),
    path("parsed/", copy_of(act)),
    path("atomic/", csrf_exempt(own(atomic=True))),
    path("async/", csrf_exempt(aact)),
    path("framework/", Framework.as_view()),
    path("mixed/", Mixed.as_view()),
    path("digest/", csrf_exempt(own(fingerprint=lambda r: r.headers["Content-Digest"]))),
    path("wrong/", csrf_exempt(own(fingerprint=lambda r: 7))),
    re_path(r"^orders/\d+/pay/$", csrf_exempt(copy_of(act))),
    re_path("", csrf_exempt(copy_of(act))),
]
SHAPES = pytest.mark.parametrize("shape", ["exempt", "atomic", "async", "framework", "mixed"])
FACES = pytest.mark.parametrize("shape", ["exempt", "atomic"])
MULTIPART = "multipart/form-data; boundary="
URLENCODED = "application/x-www-form-urlencoded"


@pytest.fixture(autouse=True)
def here(site: Stage, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000


def post(shape: str, body: Any, key: str, kind: str, **headers: str) -> Any:
    return Sender(key).post(shape, body, content_type=kind, headers=headers)


def part(name: str, value: str, more: str = "", kind: str = "") -> str:
    return f'--xx\r\nContent-Disposition: form-data; name="{name}"{more}{kind}\r\n\r\n{value}\r\n'


def send_form(
    shape: str, key: str, amount: str, photo: str = "p" * 100, file: str = "a", kind: str = "png", boundary: str = "xx"
) -> Any:
    parts = (part("amount", amount), part("photo", photo, f'; filename="{file}"', f"\r\nContent-Type: image/{kind}"))
    body = "".join(parts) + "--xx--\r\n"
    return post(shape, body.replace("--xx", f"--{boundary}"), key, MULTIPART + boundary)


@SHAPES
def test_a_multipart_form_that_nothing_has_parsed(site: Stage, key: str, shape: str) -> None:
    """Naive code compares its length: amount=100 and amount=900 are the same, and so are two photos of a size."""
    assert send_form(shape, key, "100").status_code == 201
    assert send_form(shape, key, "900").status_code == 422
    for other in ({"photo": "q" * 100}, {"file": "b"}, {"kind": "gif"}, {"kind": "png; charset=utf-16"}):
        assert send_form(shape, key, "100", **other).status_code == 422, other
    assert send_form(shape, key, "100", boundary="yyyy")["Idempotency-Replayed"] == "true", "a boundary is no data"
    assert site.effects == 1


@pytest.mark.parametrize("alias", ["postgres"])
def test_another_address_is_another_request(site: Stage, key: str) -> None:
    """The view gets the last value of a name; a pattern may name no parts; and PostgreSQL stores no NUL."""
    pairs = {
        "exempt/?amount=1&amount=9": "exempt/?amount=9&amount=1",
        "orders/1/pay/": "orders/2/pay/",
        "any/a%00b/": "any/b/",
    }
    for first, second in pairs.items():
        known = {"Authorization": "a", "Idempotency-Key": key + first[:3]}
        sent = [Client().post(f"/{each}", {}, "application/json", headers=known) for each in (first, first, second)]
        assert [answer.status_code for answer in sent] == [201, 201, 422]
    assert site.effects == 3


@FACES
def test_a_body_too_long_for_memory_or_to_be_compared(site: Stage, key: str, settings: Any, shape: str) -> None:
    """The latter is refused before the view, instead of a key that protects from nothing."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    bodies = [json.dumps({"amount": fill * 300}) for fill in ("z", "z", "y")]
    assert [post(shape, body, key, "application/json").status_code for body in bodies] == [201, 201, 422]
    change(settings, MAX_UPLOAD=200)
    assert post(shape, b"x" * 200, f"{key}1", "text/plain").status_code == 201
    refused = post(shape, b"x" * 201, f"{key}2", "text/plain")
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
    assert Client().post(f"/{shape}/", b"x" * 201, content_type="text/plain").status_code == 201
    assert site.effects == 3


@SHAPES
def test_the_same_bytes_of_another_type(site: Stage, key: str, shape: str) -> None:
    body, kind = b'{"amount": 1}', "application/json"
    assert post(shape, body, key, kind).status_code == 201
    others = ["application/json; charset=utf-16", "text/plain", "application/vnd.api+json"]
    assert {post(shape, body, key, other).status_code for other in others} <= {415, 422}
    assert post(shape, body, key, kind, **{"Content-Encoding": "gzip"}).status_code == 422
    assert post(shape, body, key, "application/json; charset=UTF-8")["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    kinds = [f"multipart/mixed; boundary={boundary}" for boundary in "aab"]  # no form: its boundary is data
    assert [post("exempt", b"--a\r\n", f"{key}2", kind).status_code for kind in kinds] == [201, 201, 422]


@pytest.mark.parametrize("shape", ["exempt", "atomic"])
def test_the_view_reads_its_body_as_it_came(site: Stage, key: str, settings: Any, shape: str) -> None:
    """Also the form of a view without CSRF, which is not to be broken by who looks for a key."""
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 10
    body = b"line\n" * 1000
    ways = [
        lambda request: request.read(),
        lambda request: b"".join(request),
        lambda request: b"".join(iter(lambda: request.read(7), b"")),
        lambda request: request.readline() + request.read(),
    ]
    read: list[Any] = []
    for number, way in enumerate(ways):
        site.during = lambda request, way=way: read.append(way(request))
        assert post(shape, body, f"{key}{number}", "text/plain").status_code == 201
    assert read == [body] * len(ways)
    for form in ("a=" + "x" * 2000, "&".join(f"f{n}=1" for n in range(20))):
        site.during = lambda request: read.append(request.read())
        assert Client().post("/exempt/", form, content_type=URLENCODED).status_code == 201
        assert read[-1] == form.encode()


@pytest.mark.parametrize("shape", ["exempt", "async"])
def test_the_view_parses_the_form_itself(site: Stage, key: str, shape: str) -> None:
    """With its upload handlers, which it may set only before the body is parsed."""
    got: list[Any] = []

    def during(request: Any) -> None:
        request.upload_handlers = request.upload_handlers[:1]
        got.append((request.POST["amount"], request.FILES["photo"].read()))

    site.during = during
    assert send_form(shape, key, "100").status_code == 201
    assert got == [("100", b"p" * 100)]


def reading(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        request.read(4)
        return get_response(request)

    return middleware


def test_a_body_that_something_else_has_read(site: Stage, key: str, settings: Any) -> None:
    settings.MIDDLEWARE = [f"{__name__}.reading", *settings.MIDDLEWARE]
    refused = post("exempt", b"some text", key, "text/plain")
    assert (refused.status_code, refused.json()["code"]) == (400, "body_unread")
    assert "fingerprint" in refused.json()["detail"]
    assert post("wrong", b"x", key, "text/plain").status_code == 500, "a fingerprint that is no text"
    assert not site.runs
    digests = [{"Content-Digest": f"sha-256=:{digest}=:"} for digest in ("abc", "abc", "xyz")]
    sent = [post("digest", b"some text", key, "text/plain", **digest) for digest in digests]
    assert [answer.status_code for answer in sent] == [201, 201, 422]


class Gone(io.BytesIO):
    def read(self, *args: Any) -> bytes:
        raise OSError("the client has gone")


BROKEN_OFF = [("exempt", "text/plain"), ("exempt", MULTIPART + "xx"), ("parsed", URLENCODED)]


@pytest.mark.parametrize(("shape", "kind"), BROKEN_OFF)
def test_a_client_that_goes_within_its_body(site: Stage, sender: Sender, settings: Any, shape: str, kind: str) -> None:
    """No error of the server, and no claim: the client sends it again."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    more: Any = {"wsgi.input": Gone(), "CONTENT_LENGTH": "100", "content_type": kind}
    assert sender.post(shape, b"", **more).status_code == 400
    assert (site.runs, states(site.alias)) == ([], [])


async def send_in_chunks(body: bytes, kind: str) -> int:
    """Under ASGI, of no length that is said."""
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": body}])
    known = {"authorization": "a", "idempotency-key": "chunks", "content-type": kind, "host": "testserver"}
    scope: Any = {"type": "http", "method": "POST", "path": "/exempt/", "query_string": b""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in known.items()]

    async def receive() -> Any:
        for part in parts:
            return part
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await ASGIHandler()(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize("kind", ["application/json", URLENCODED])
def test_a_large_body_of_unsaid_length_is_left_to_the_view(site: Stage, settings: Any, kind: str) -> None:
    """Django has it in a file. Naive code takes no length for none, and reads it into memory."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    read: list[bool] = []
    site.during = lambda request: read.append(hasattr(request, "_body"))
    bodies = [b"x" * 200, b"x" * 200, b"x" * 201, b"x" * 99]
    assert [asyncio.run(send_in_chunks(body, kind)) for body in bodies] == [201, 201, 422, 422]
    assert read == [False]


# -- what is compared, over many values

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=5), st.randoms(use_true_random=False))
def test_json_is_the_same_in_any_order(value: dict[str, Any], chance: Any) -> None:
    items = list(value.items())
    chance.shuffle(items)
    turned = json.dumps(dict(items), indent=2).encode()
    assert decisions.json_body(json.dumps(value).encode()) == decisions.json_body(turned)


def compared(fields: dict[str, list[str]]) -> bytes:
    request = RequestFactory().post("/", urlencode(fields, doseq=True), content_type=URLENCODED)
    return b"".join(body_of(request, Options()))


@given(st.dictionaries(st.text("ab&=é"), st.lists(st.text("ab&=é"), min_size=1, max_size=3), max_size=4))
def test_forms_are_the_same_in_any_order_of_fields_but_not_of_values(fields: dict[str, list[str]]) -> None:
    assert compared(fields) == compared(dict(reversed(fields.items())))
    backwards = {name: values[::-1] for name, values in fields.items()}
    assert (compared(backwards) == compared(fields)) == (backwards == fields)


def test_what_one_parser_takes_for_the_same_another_does_not() -> None:
    """A view may read numbers as Decimal, and the first of two members of one name; NaN is no JSON."""
    for first, second in (
        ('{"amount": 100000000000000000.01}', '{"amount": 100000000000000000.02}'),
        ('{"amount": 1e400}', '{"amount": 2e400}'),
        ('{"amount": 1, "amount": 2}', '{"amount": 2}'),
        ('{"amount": 1.5}', '{"amount": "1.5"}'),
        ('{"amount": 1.5}', '{"amount": [NaN, "1.5"]}'),
        ("[1.5]", '[[NaN,"1.5"]]'),
    ):
        assert decisions.json_body(first.encode()) != decisions.json_body(second.encode())
    deep = b"[" * 100_000
    assert decisions.json_body(deep) == decisions.RAW + deep
