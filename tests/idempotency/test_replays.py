"""Replays beside the body: the policies of the view, encoding, language; and the answers that replace a replay."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections
from django.http import HttpResponse
from django.test import AsyncClient
from django.utils import translation
from django.views.decorators.clickjacking import xframe_options_exempt

from django_distlock.idempotency.decisions import accepts
from tests.idempotency.conftest import MIDDLEWARE, Sender, states
from tests.idempotency.test_forms import Browser
from tests.idempotency.test_people import Pressed, Twin
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

BOTH = pytest.mark.parametrize("shape", ["plain", "atomic"])
POLICIES = {
    "Content-Security-Policy": "sandbox",
    "Content-Security-Policy-Report-Only": "default-src 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-site",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=()",
    "X-Content-Type-Options": "nosniff",
}
SECURITY = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    *MIDDLEWARE,
]


# -- policies


@BOTH
def test_policies_of_the_view_are_those_of_the_replay(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    """Naive code repeats the page of an untrusted author without its sandbox."""
    settings.MIDDLEWARE = SECURITY
    site.answer = lambda request: HttpResponse("<script>", headers=POLICIES)
    first, second = sender.post(shape), sender.post(shape)
    assert second["Idempotency-Replayed"] == "true"
    for name, value in POLICIES.items():
        assert (first[name], second[name]) == (value, value), name


@BOTH
def test_a_page_that_may_be_framed_may_be_framed_again(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    """The decorator below leaves a mark on the response and no header."""
    settings.MIDDLEWARE = SECURITY
    site.answer = xframe_options_exempt(lambda request: HttpResponse("widget"))
    assert [sender.post(shape).get("X-Frame-Options") for _ in range(2)] == [None, None]


def test_a_policy_of_django_6_is_kept(site: Stage, sender: Sender) -> None:
    """``csp_override`` leaves its policy on the response for the middleware above."""

    def answer(request: Any) -> HttpResponse:
        response: Any = HttpResponse("x")
        response._csp_config = {"default-src": {"'self'"}}
        return response  # type: ignore[no-any-return]

    site.answer = answer
    sender.post()
    assert sender.post()._csp_config == {"default-src": ["'self'"]}


def test_a_policy_that_cannot_be_kept_leaves_no_answer_without_it(site: Stage, sender: Sender) -> None:
    def answer(request: Any) -> HttpResponse:
        response: Any = HttpResponse("x")
        response._csp_config = {"default-src": object()}
        return response  # type: ignore[no-any-return]

    site.answer = answer
    assert sender.post().status_code == 200
    assert sender.post().json()["code"] == "already_completed"


# -- encoding


@pytest.mark.parametrize(
    ("accepted", "plain"),
    [("gzip", False), ("br, GZIP;q=0.5", False), ("*", False), ("", True), ("identity", True)],
)
@BOTH
def test_a_compressed_answer_for_a_client_that_takes_none(
    site: Stage, sender: Sender, settings: Any, shape: str, accepted: str, plain: bool
) -> None:
    """GZipMiddleware below: the first attempt said gzip, the retry does not."""
    settings.MIDDLEWARE = [*MIDDLEWARE, "django.middleware.gzip.GZipMiddleware"]
    body = b"a long answer " * 100
    site.answer = lambda request: HttpResponse(body)
    if shape == "atomic":  # the middleware is above that: nothing is compressed where it is kept
        site.answer = compressed(body)
    first = sender.post(shape, headers={"Accept-Encoding": "gzip"})
    assert first["Content-Encoding"] == "gzip"
    second = sender.post(shape, headers={"Accept-Encoding": accepted})
    assert second["Idempotency-Replayed"] == "true"
    assert ("Content-Encoding" not in second) is plain
    assert (second.content if plain else gzip.decompress(second.content)) == body
    if not plain:
        assert "Accept-Encoding" in second["Vary"]


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        *(("gzip", True), ("GZIP", True), ("deflate, gzip;q=0.1", True), ("*", True), ("br;q=1, *;q=0.5", True)),
        *(("", False), ("identity", False), ("gzip;q=0", False), ("gzip; q=0.000", False), ("*;q=0", False)),
        *(("gzip;q=0, *", False), ("xgzip", False)),
    ],
)
def test_what_a_client_takes(header: str, accepted: bool) -> None:
    assert accepts(header, "gzip") is accepted


def compressed(body: bytes, encoding: str = "gzip") -> Any:
    return lambda request: HttpResponse(gzip.compress(body), headers={"Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["br", "gzip"])
def test_what_cannot_be_decompressed_is_not_given(site: Stage, sender: Sender, encoding: str) -> None:
    site.answer = lambda request: HttpResponse(b"\x00 neither", headers={"Content-Encoding": encoding})
    sender.post(headers={"Accept-Encoding": encoding})
    second = sender.post(headers={"Accept-Encoding": "identity"})
    assert (second.status_code, second.json()["code"]) == (409, "already_completed")


# -- language


@BOTH
def test_a_replay_has_the_language_of_its_text(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    """LocaleMiddleware writes Content-Language by what the retry prefers, not by what it gets."""
    settings.USE_I18N = True
    site.answer = lambda request: HttpResponse(translation.get_language())
    first = sender.post(shape, headers={"Accept-Language": "de"})
    second = sender.post(shape, headers={"Accept-Language": "en"})
    assert (first.content, first["Content-Language"]) == (b"de", "de")
    assert (second.content, second["Content-Language"]) == (b"de", "de")


def test_a_language_that_the_view_names_is_kept(site: Stage, sender: Sender, settings: Any) -> None:
    site.answer = lambda request: HttpResponse("ciao", headers={"Content-Language": "it"})
    assert [sender.post()["Content-Language"] for _ in range(2)] == ["it", "it"]


# -- a dead database


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize(("shape", "status"), [("atomic", 503), ("plain", 503), ("atomic_open", 201)])
def test_a_database_that_is_down(
    site: Stage, sender: Sender, monkeypatch: pytest.MonkeyPatch, shape: str, status: int
) -> None:
    """In the exactly-once mode the transaction begins before anything is asked. Naive code answers 500."""
    connection = connections[site.alias]
    connection.close()

    def refuse(*args: Any) -> Any:
        raise OperationalError("connection refused")

    if status == 201:
        monkeypatch.setattr("tests.idempotency.views.rows.write", lambda *args: None)
    if connection.vendor == "sqlite" and connection.connection is not None:
        connection.connection.close()
        connection.connection = None
    with monkeypatch.context() as patch:
        patch.setattr(connection, "get_new_connection", refuse)
        response = sender.post(shape)
    assert response.status_code == status
    if status == 503:
        assert response.json()["code"] == "store_unavailable"
        assert response["Retry-After"] == "5"
        assert not site.runs
    else:
        assert len(site.runs) == 1


def test_a_user_who_cannot_be_looked_up(site: Stage, sender: Sender, settings: Any) -> None:
    """The session is in the database that is down."""
    settings.MIDDLEWARE = [*MIDDLEWARE[:-1], f"{__name__}.unknown", MIDDLEWARE[-1]]
    response = sender.post()
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")


class Unknown:
    @property
    def is_authenticated(self) -> bool:
        raise OperationalError("connection refused")


def unknown(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        request.user = Unknown()
        return get_response(request)

    return middleware


# -- people, while the first still runs


@pytest.mark.parametrize(("alias", "shape"), [("default", "form"), ("postgres", "form")], indirect=["alias"])
def test_what_still_runs_is_not_said_to_be_saved(site: Stage, shape: str) -> None:
    """It may yet end as the form with its errors, and then nothing was saved."""
    site.answer = redirect
    browser = Browser()
    fields = browser.open(shape)
    with Pressed(site, browser, fields | {"name": "a"}, shape):
        page = Twin(browser).send(fields | {"name": "b"}, shape)
        text = page.content.decode()
    assert page.status_code == 422
    assert "Still being saved" in text
    assert "Already saved" not in text
    assert "Submit as new" in text
    assert "Already saved" in browser.send(fields | {"name": "b"}, shape).content.decode()
    assert states(site.alias) == ["completed"]


def test_language_and_policies_under_asgi(site: Stage, key: str, settings: Any) -> None:
    settings.MIDDLEWARE = SECURITY
    site.answer = lambda request: HttpResponse(translation.get_language(), headers=POLICIES)

    async def post(language: str) -> Any:
        headers = {"Authorization": "a", "Idempotency-Key": key, "Accept-Language": language}
        return await AsyncClient().post("/async/", {}, headers=headers)

    answers = [asyncio.run(post(language)) for language in ("de", "en")]
    assert [answer["Content-Language"] for answer in answers] == ["de", "de"]
    assert [answer["Content-Security-Policy"] for answer in answers] == ["sandbox", "sandbox"]


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_session_that_the_server_has_ended(site: Stage, sender: Sender) -> None:
    """A connection that is kept for later requests (CONN_MAX_AGE), and is dead by the next one."""
    connection = connections[site.alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if site.alias == "postgres" else "SELECT CONNECTION_ID()")
        (number,) = cursor.fetchone()
    other = connection.copy()
    kill = "SELECT pg_terminate_backend(%s)" if site.alias == "postgres" else "KILL %s"
    with other.cursor() as cursor:
        cursor.execute(kill, [number])
    other.close()
    response = sender.post("atomic")
    connection.close()
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
    assert not site.runs
    assert sender.post("atomic").status_code == 201
