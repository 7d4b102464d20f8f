"""The same key with other data is refused, however the body comes; and the view gets its body whole."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from django.test import Client
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView

from django_distlock.idempotency import idempotent
from django_distlock.idempotency.drf import IdempotentMixin
from tests.idempotency.conftest import change, serve, states
from tests.idempotency.views import aact, act, copy_of

if TYPE_CHECKING:
    from tests.idempotency.actors import Sender
    from tests.idempotency.views import Stage


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
    path("atomic/", csrf_exempt(idempotent(atomic=True)(copy_of(act)))),
    path("async/", csrf_exempt(aact)),
    path("framework/", Framework.as_view()),
    path("mixed/", Mixed.as_view()),
    path("own/", csrf_exempt(idempotent(fingerprint=lambda r: r.headers["Content-Digest"])(copy_of(act)))),
    path("wrong/", csrf_exempt(idempotent(fingerprint=lambda r: 7)(copy_of(act)))),  # type: ignore[arg-type,return-value]
    re_path(r"^orders/\d+/pay/$", csrf_exempt(copy_of(act))),
    re_path("", csrf_exempt(copy_of(act))),
]
SHAPES = pytest.mark.parametrize("shape", ["exempt", "atomic", "async", "framework", "mixed"])
FACES = pytest.mark.parametrize("shape", ["exempt", "atomic", "async"])


@pytest.fixture(autouse=True)
def here(site: Stage, settings: Any) -> None:
    serve(settings, __name__)


def post(shape: str, body: Any, key: str, kind: str | None = None, **headers: str) -> Any:
    """A form as multipart, or the bytes as they are."""
    client = Client(raise_request_exception=False)
    more = {} if kind is None else {"content_type": kind}
    known = {"Authorization": "a", "Idempotency-Key": key}
    return client.post(f"/{shape}/", body, headers=known | headers, **more)


def send_form(shape: str, key: str, boundary: str, amount: str, photo: bytes = b"p" * 100, **part: str) -> Any:
    name, kind = part.get("name", "a.png"), part.get("kind", "image/png")
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="amount"\r\n\r\n{amount}',
        f'--{boundary}\r\nContent-Disposition: form-data; name="photo"; filename="{name}"\r\nContent-Type: {kind}\r\n',
    ]
    body = "\r\n".join(lines).encode() + b"\r\n" + photo + f"\r\n--{boundary}--\r\n".encode()
    return post(shape, body, key, f"multipart/form-data; boundary={boundary}")


@SHAPES
def test_a_multipart_form_that_nothing_has_parsed(site: Stage, key: str, shape: str) -> None:
    """Naive code compares its length: amount=100 and amount=900 are the same, and so are two photos of a size."""
    assert send_form(shape, key, "xx", "100").status_code == 201
    others = [
        send_form(shape, key, "xx", "900"),
        send_form(shape, key, "xx", "100", b"q" * 100),
        send_form(shape, key, "xx", "100", name="b.png"),
        send_form(shape, key, "xx", "100", kind="image/gif"),
    ]
    assert [other.status_code for other in others] == [422] * 4
    again = send_form(shape, key, "yyyy", "100")
    assert (again.status_code, again["Idempotency-Replayed"]) == (201, "true"), "a boundary is no data"
    assert site.effects == 1


@FACES
def test_files_in_any_order(site: Stage, key: str, shape: str) -> None:
    """The order of fields is no data; the charset of a file is."""
    part = '--xx\r\nContent-Disposition: form-data; name="{}"; filename="f"\r\nContent-Type: text/plain{}\r\n\r\nf\r\n'
    end = '--xx\r\nContent-Disposition: form-data; name="amount"\r\n\r\n1\r\n--xx--\r\n'
    one, two, other = part.format("one", ""), part.format("two", ""), part.format("two", "; charset=utf-16")
    sent = [post(shape, body + end, key, "multipart/form-data; boundary=xx") for body in (one + two, two + one)]
    assert [(s.status_code, s.get("Idempotency-Replayed")) for s in sent] == [(201, None), (201, "true")]
    assert post(shape, one + other + end, key, "multipart/form-data; boundary=xx").status_code == 422


def test_a_form_that_is_parsed_before(site: Stage, sender: Sender) -> None:
    def send(content: bytes, kind: str = "text/plain") -> int:
        data = {"photo": SimpleUploadedFile("a.txt", content, kind)}
        return int(sender.client.post("/parsed/", data, headers={"Idempotency-Key": sender.key or ""}).status_code)

    assert [send(b"one"), send(b"one"), send(b"two"), send(b"one", "text/html")] == [201, 201, 422, 422]
    broken = {"content_type": "multipart/form-data", "headers": {"Idempotency-Key": "broken"}}
    assert sender.client.post("/parsed/", b"--x\r\n", **broken).status_code == 400


@pytest.mark.parametrize("alias", ["postgres"])
def test_another_address_is_another_request(site: Stage, key: str) -> None:
    """Of values of one name the view gets the last; and a pattern may match addresses without naming their parts.
    PostgreSQL stores no NUL, and the address is not to be stored."""
    for first, second in (
        ("exempt/?amount=100&amount=900", "exempt/?amount=900&amount=100"),
        ("orders/1/pay/", "orders/2/pay/"),
        ("anything/a%00b/", "anything/b/"),
    ):
        known = {"Authorization": "a", "Idempotency-Key": key + first[:3]}
        sent = [Client().post(f"/{each}", {}, "application/json", headers=known) for each in (first, first, second)]
        assert [answer.status_code for answer in sent] == [201, 201, 422]
    assert site.effects == 3


@FACES
def test_a_body_too_long_for_memory_and_one_too_long_to_be_compared(
    site: Stage, key: str, settings: Any, shape: str
) -> None:
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
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 10
    read: list[Any] = []
    body = b"line\n" * 1000
    ways = [
        lambda request: request.read(),
        lambda request: b"".join(request),
        lambda request: b"".join(iter(lambda: request.read(7), b"")),
        lambda request: request.readline() + request.read(),
    ]
    for number, way in enumerate(ways):
        site.during = lambda request, way=way: read.append(way(request))
        assert post(shape, body, f"{key}{number}", "text/plain").status_code == 201
    assert read == [body] * len(ways)
    for form in ("a=" + "x" * 200, "&".join(f"f{n}=1" for n in range(20))):
        site.during = lambda request: read.append(request.read())
        assert Client().post("/exempt/", form, content_type="application/x-www-form-urlencoded").status_code == 201
        assert read[-1] == form.encode()


@pytest.mark.parametrize("shape", ["exempt", "async"])
def test_the_view_parses_the_form_itself(site: Stage, key: str, shape: str) -> None:
    """With its upload handlers, which it may set only before the body is parsed."""
    got: list[Any] = []

    def during(request: Any) -> None:
        request.upload_handlers = request.upload_handlers[:1]
        got.append((request.POST["amount"], request.FILES["photo"].read()))

    site.during = during
    assert send_form(shape, key, "xx", "100").status_code == 201
    assert got == [("100", b"p" * 100)]


def test_a_body_that_something_else_has_read(site: Stage, key: str, settings: Any) -> None:
    settings.MIDDLEWARE = [f"{__name__}.reading", *settings.MIDDLEWARE]
    refused = post("exempt", b"some text", key, "text/plain")
    assert (refused.status_code, refused.json()["code"]) == (400, "body_unread")
    assert "fingerprint" in refused.json()["detail"]
    assert post("wrong", b"x", key, "text/plain").status_code == 500, "a fingerprint that is no text"
    assert not site.runs
    statuses = [
        post("own", b"some text", key, "text/plain", **{"Content-Digest": f"sha-256=:{digest}=:"}).status_code
        for digest in ("abc", "abc", "xyz")
    ]
    assert statuses == [201, 201, 422]


def reading(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        request.read(4)
        return get_response(request)

    return middleware


class Gone(io.BytesIO):
    def read(self, *args: Any) -> bytes:
        raise OSError("the client has gone")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ("exempt", "text/plain"),
        ("exempt", "multipart/form-data; boundary=xx"),
        ("parsed", "application/x-www-form-urlencoded"),
    ],
)
def test_a_client_that_goes_in_the_midst_of_its_body(
    site: Stage, key: str, settings: Any, shape: str, kind: str
) -> None:
    """No error of the server, and no claim: the client sends it again."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}
    client = Client(raise_request_exception=False)
    more: Any = {"wsgi.input": Gone(), "CONTENT_LENGTH": "100"}
    assert client.generic("POST", f"/{shape}/", b"", kind, headers=headers, **more).status_code == 400
    assert (site.runs, states(site.alias)) == ([], [])


def test_phases_of_other_data_are_forgotten_where_the_body_is_a_stream(site: Stage, key: str) -> None:
    """The length alone would take the charge of one upload for that of another."""
    done: list[bool] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            done.append(charge.done)

    site.during, site.answer = pay, lambda request: HttpResponse(status=500)
    for amount in ("100", "100", "900"):
        send_form("exempt", key, "xx", amount)
    assert done == [False, True, False]


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_a_large_body_of_unsaid_length_is_left_to_the_view(site: Stage, key: str, settings: Any, kind: str) -> None:
    """In chunks, under ASGI: Django has it in a file. Naive code takes no length for none, and reads it into memory."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    read: list[bool] = []
    site.during = lambda request: read.append(hasattr(request, "_body"))
    known = {"authorization": "a", "idempotency-key": key, "content-type": kind, "host": "testserver"}
    scope = {"type": "http", "method": "POST", "path": "/exempt/", "query_string": b""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in known.items()]

    async def send_in_chunks(body: bytes) -> int:
        sent: list[Any] = []
        parts = iter([{"type": "http.request", "body": body}])
        hold = asyncio.Event()

        async def receive() -> Any:
            for part in parts:
                return part
            await hold.wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await ASGIHandler()(dict(scope), receive, send)
        return int(sent[0]["status"])

    bodies = [b"x" * 200, b"x" * 200, b"x" * 201, b"x" * 99]
    assert [asyncio.run(send_in_chunks(body)) for body in bodies] == [201, 201, 422, 422]
    assert read == [False]
