"""Refusals: another user's key, no CSRF token, unknown clients, invented keys, keys and bodies that are too large."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import views as auth
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.urls import resolve
from django.views import View

from django_distlock.idempotency import decisions
from django_distlock.idempotency.options import is_exempt
from django_distlock.manager.site_key import site_key
from tests.idempotency.conftest import Sender, states
from tests.idempotency.test_forms import Browser
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

BAD = ["", " ", "a b", "é", "a,b", '"a","b"', '"a', 'a"b', "\x00", "x" * 256, '"' + "x" * 256 + '"', "x" * 100_000]


@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_another_ones_key_is_another_key(site: Stage, key: str, shape: str) -> None:
    """Naive code, keyed by the header alone, gives B the answer to A."""
    answers = [Sender(key, who=who).post(shape) for who in ("a", "b")]
    assert [answer.json()["run"] for answer in answers] == [1, 2]
    assert not any(answer.has_header("Idempotency-Replayed") for answer in answers)


def test_another_ones_form_key_is_refused(site: Stage) -> None:
    site.answer = redirect
    mine, other = Browser(), Browser()
    fields, their = mine.open(), other.open()
    mine.send(fields)
    stolen = other.send(their | {"_idempotency_key": fields["_idempotency_key"]})
    assert stolen.status_code == 409
    assert site.effects == 1
    assert "Location" not in stolen


@pytest.mark.parametrize("value", ["x", "a.b.c", "." * 1025, "é.x.y", "a" * 22 + "." + "b" * 43 + "." + "c" * 43])
def test_invented_form_keys_are_refused_and_store_nothing(site: Stage, value: str) -> None:
    browser = Browser()
    response = browser.send(browser.open() | {"_idempotency_key": value})
    assert response.status_code == 400
    assert site.effects == 0
    assert states(site.alias) == []


def test_a_form_with_two_keys_is_refused(site: Stage) -> None:
    browser = Browser()
    first, second = browser.open(), browser.open()
    both = first | {"_idempotency_key": [first["_idempotency_key"], second["_idempotency_key"]]}
    assert browser.send(both).status_code == 400


@pytest.mark.parametrize("shape", ["form", "atomic_form"])
def test_without_a_csrf_token_nothing_is_answered(site: Stage, shape: str) -> None:
    site.answer = redirect
    browser = Browser()
    fields = browser.open(shape)
    browser.send(fields, shape)
    del fields["csrfmiddlewaretoken"]
    response = browser.send(fields, shape)
    assert response.status_code == 403
    assert "Idempotency-Replayed" not in response


def test_header_keys_of_nobody_are_ignored(site: Stage, key: str) -> None:
    client = Client()
    for _ in range(2):
        client.post("/plain/", headers={"Idempotency-Key": key})
    assert site.effects == 2
    assert states(site.alias) == []


def test_header_keys_of_nobody_where_they_are_allowed(site: Stage, key: str) -> None:
    client = Client()
    for _ in range(2):
        assert client.post("/anonymous/", headers={"Idempotency-Key": key}).status_code == 201
    assert site.effects == 1


def test_a_refusal_of_somebody_unknown_is_not_kept(site: Stage) -> None:
    """Else a forged webhook uses up the number of the real one."""
    client = Client()
    site.answer = lambda request: HttpResponse("bad signature", status=400)
    assert client.post("/webhook/", "forged", content_type="text/plain", headers={"X-Event": "1"}).status_code == 400
    site.answer = lambda request: HttpResponse("ok")
    assert client.post("/webhook/", "real", content_type="text/plain", headers={"X-Event": "1"}).content == b"ok"
    again = client.post("/webhook/", "real", content_type="text/plain", headers={"X-Event": "1"})
    assert again["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_bad_keys(site: Stage, shape: str, value: str) -> None:
    response = Sender().post(shape, key=value)
    assert (response.status_code, response.json()["code"]) == (400, "bad_key")
    assert site.effects == 0


def test_a_key_is_measured_before_it_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "_BARE", None)
    with pytest.raises(decisions.BadKey, match="longer"):
        decisions.parse_header("x" * 10_000_000)


@pytest.mark.parametrize("value", ["a", "~" * 255, '"a b"', '"\\"quoted\\""', '"14593813892047"'])
def test_good_keys(site: Stage, value: str) -> None:
    if " " in value:
        assert Sender().post(key=value).status_code == 400
        return
    for _ in range(2):
        assert Sender().post(key=value).status_code == 201
    assert site.effects == 1


def test_bare_and_quoted_are_one_key(site: Stage, key: str) -> None:
    Sender().post(key=key)
    assert Sender().post(key=f'"{key}"')["Idempotency-Replayed"] == "true"


def test_users_are_told_apart_from_credentials(site: Stage, key: str) -> None:
    users = [User(pk=5000 + number, username=f"user{number}") for number in range(2)]
    for user in users:
        user.save()
    try:
        for user in [*users, users[0]]:
            client = Client()
            client.force_login(user)
            client.post("/plain/", {"a": 1}, headers={"Idempotency-Key": key})
        assert site.effects == 2
        with connections[site.alias].cursor() as cursor:
            cursor.execute("SELECT principal FROM django_distlock_idempotency ORDER BY principal")
            assert [row[0] for row in cursor.fetchall()] == ["user 5000", "user 5001"]
    finally:
        for user in users:
            user.delete()


def test_neither_key_nor_credential_is_stored(site: Stage, key: str) -> None:
    Sender(key, who="canary-credential").post(data={"password": "canary-password"})
    with connections[site.alias].cursor() as cursor:
        cursor.execute("SELECT * FROM django_distlock_idempotency")
        text = repr(cursor.fetchall())
    assert key not in text
    assert "canary" not in text


def test_no_credential_can_be_tried_on_a_dump(site: Stage, key: str) -> None:
    """Naive code keys the hash in the list by the site key, which is in the same database: passwords are tried fast."""
    secret = site_key.load()
    labels = []
    for word in ("a", "b", "a"):
        Sender(f"{key}{len(labels)}", who=word).post()
        with connections[site.alias].cursor() as cursor:
            cursor.execute("SELECT principal FROM django_distlock_idempotency")
            ((label,),) = cursor.fetchall()
            cursor.execute("DELETE FROM django_distlock_idempotency")  # two of one millisecond have no order
            labels.append(label)
    assert labels[0] == labels[2] != labels[1], "who looks can tell them apart"
    assert decisions.keyed(secret, "mark", "testserver", "credential:Bearer a")[:12] not in labels[0]


def test_a_body_too_large_for_memory_is_left_to_the_view(site: Stage, sender: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    big = '{"a": "' + "x" * 200 + '"}'
    for _ in range(2):
        assert sender.post(data=big).status_code == 201
    assert site.effects == 1


@pytest.mark.parametrize("shape", ["plain", "decorated"])
def test_a_broken_multipart_body_is_no_server_error(site: Stage, sender: Sender, key: str, shape: str) -> None:
    response = sender.client.post(
        f"/{shape}/", b"--x\r\n", content_type="multipart/form-data", headers={"Idempotency-Key": key}
    )
    assert response.status_code == 400


def test_multipart_without_csrf_is_left_to_the_view(site: Stage, sender: Sender) -> None:
    """It is not parsed yet: the view may choose its upload handlers."""
    site.during = lambda request: setattr(request, "upload_handlers", [])
    response = sender.client.post("/exempt_of_csrf/", {"a": "b"}, headers={"Idempotency-Key": sender.key or ""})
    assert response.status_code == 201


@pytest.mark.parametrize("shape", ["exempt", "login"])
def test_views_that_are_left_alone(site: Stage, sender: Sender, shape: str) -> None:
    """The answer of a log-in view is for one person at one moment."""
    for _ in range(2):
        sender.post(shape)
    assert site.effects == 2
    assert states(site.alias) == []


@pytest.mark.parametrize(
    "view",
    [
        auth.LoginView,
        auth.LogoutView,
        auth.PasswordChangeView,
        auth.PasswordResetView,
        auth.PasswordResetConfirmView,
    ],
)
def test_every_view_of_logging_in_and_out_and_of_passwords_is_exempt(view: Any) -> None:
    """Also one that a project derives."""
    assert is_exempt(view.as_view(), "POST")
    assert is_exempt(type("Derived", (view,), {}).as_view(), "POST")
    assert not is_exempt(View.as_view(), "POST")
    for name in ("login", "logout", "password_change"):
        assert is_exempt(resolve(f"/admin/{name}/", "testproject.urls").func, "POST")
    assert not is_exempt(resolve("/admin/auth/user/add/", "testproject.urls").func, "POST")


@pytest.mark.parametrize("shape", ["hidden", "hidden_plain"])
def test_options_that_the_middleware_cannot_see(site: Stage, sender: Sender, shape: str, caplog: Any) -> None:
    """Middleware and decorator would both handle the request, each in its own way: an error names the cure."""
    assert sender.post(shape).status_code == 500
    assert "Put @idempotent on top" in caplog.text
    assert site.effects == 0


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_a_large_body_of_unsaid_length_is_left_to_the_view(site: Stage, key: str, settings: Any, kind: str) -> None:
    """In chunks, under ASGI: Django has it in a file. Naive code takes no length for none, and reads it into memory."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    read: list[bool] = []

    def during(request: Any) -> None:
        read.append(hasattr(request, "_body"))

    site.during = during

    async def post(body: bytes) -> int:
        sent: list[Any] = []
        parts = iter([{"type": "http.request", "body": body}])
        headers = [
            ("authorization", "Bearer a"),
            ("idempotency-key", key),
            ("content-type", kind),
            ("host", "testserver"),
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/exempt_of_csrf/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
        }
        hold = asyncio.Event()

        async def receive() -> Any:
            for part in parts:
                return part
            await hold.wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await ASGIHandler()(scope, receive, send)
        return int(sent[0]["status"])

    bodies = [b"x" * 200, b"x" * 200, b"x" * 201, b"x" * 99]
    assert [asyncio.run(post(body)) for body in bodies] == [201, 201, 422, 422]
    assert read == [False]
