"""Replays beside the body: the policies of the view, encoding, language; and a store that is away."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.core.cache import caches
from django.db import OperationalError, connections
from django.http import HttpResponse
from django.utils import translation
from django.utils.functional import SimpleLazyObject

from tests.idempotency import MIDDLEWARE
from tests.idempotency.world import (
    Sender,
    Stage,
    at_once,
    by_task,
    change,
    fails,
    sql,
    states,
)
from tests.transactions import rows

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


@BOTH
def test_policies_and_encoding_of_the_view_are_those_of_the_replay(
    site: Stage, sender: Sender, settings: Any, shape: str
) -> None:
    """Naive code repeats the page of an untrusted author without its sandbox."""
    settings.MIDDLEWARE = SECURITY
    body = gzip.compress(b"<script>" * 100)
    site.answer = lambda request: HttpResponse(body, headers={**POLICIES, "Content-Encoding": "gzip"})
    first, second = sender.post(shape), sender.post(shape)
    assert second["Idempotency-Replayed"] == "true"
    for name, value in POLICIES.items():
        assert (first[name], second[name]) == (value, value), name
    assert (second["Content-Encoding"], second.content) == ("gzip", body)
    assert "Accept-Encoding" in second["Vary"]


def test_a_policy_of_django_6_leaves_no_body(site: Stage, sender: Sender) -> None:
    """``csp_override`` leaves its policy on the response for the middleware above: a replay would come without it."""

    def answer(request: Any) -> HttpResponse:
        response: Any = HttpResponse("x")
        response._csp_config = {"default-src": {"'self'"}}
        return response  # type: ignore[no-any-return]

    site.answer = answer
    assert sender.post().status_code == 200
    assert sender.post().json()["code"] == "already_completed"


def test_a_replay_has_the_language_of_its_text(site: Stage, sender: Sender, key: str, settings: Any) -> None:
    """LocaleMiddleware writes Content-Language by what the retry prefers, not by what it gets."""
    settings.USE_I18N = True
    preferred = [{"Accept-Language": language} for language in ("de", "en")]
    site.answer = lambda request: HttpResponse(translation.get_language(), headers=POLICIES)
    for shape in ("plain", "atomic"):
        answers = [sender.post(shape, headers=header) for header in preferred]
        assert [(one.content, one["Content-Language"]) for one in answers] == [(b"de", "de")] * 2
    answers = [by_task("async", key, **header) for header in preferred]
    assert [(one["Content-Language"], one["Referrer-Policy"]) for one in answers] == [("de", "no-referrer")] * 2
    site.answer = lambda request: HttpResponse("ciao", headers={"Content-Language": "it"})
    assert [sender.post(key="it")["Content-Language"] for _ in range(2)] == ["it", "it"]


# -- a store that is away

AWAY = [("default", "atomic"), ("default", "plain"), ("postgres", "atomic"), ("postgres", "atomic_open")]


def is_away(response: Any) -> bool:
    problem = (response.status_code, response.json()["code"], response.get("Retry-After"))
    return problem == (503, "store_unavailable", "5")


@pytest.mark.parametrize(("alias", "shape"), AWAY)
def test_a_database_that_is_down(site: Stage, sender: Sender, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """In the exactly-once mode the transaction begins before anything is asked. Naive code answers 500."""
    connection = connections[site.alias]
    connection.close()
    monkeypatch.setattr(rows, "write", lambda *args: None)
    if connection.vendor == "sqlite" and connection.connection is not None:
        connection.connection.close()
        connection.connection = None
    with monkeypatch.context() as patch:
        patch.setattr(connection, "get_new_connection", fails(OperationalError("connection refused")))
        response = sender.post(shape)
    assert response.status_code == 201 if shape == "atomic_open" else is_away(response)
    assert len(site.runs) == (shape == "atomic_open")


def looks_up(get_response: Any) -> Any:
    """As AuthenticationMiddleware, with the sessions in a database that is down."""

    def middleware(request: Any) -> Any:
        request.user = SimpleLazyObject(fails(OperationalError("connection refused")))
        return get_response(request)

    return middleware


def test_a_user_who_cannot_be_looked_up(site: Stage, sender: Sender, settings: Any) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:-1], f"{__name__}.looks_up", MIDDLEWARE[-1]]
    assert is_away(sender.post())
    assert not site.runs


@pytest.mark.parametrize(("alias", "in_transaction"), [("default", False), ("postgres", False), ("postgres", True)])
def test_exactly_once_without_its_store_only_if_that_is_wanted(
    site: Stage, sender: Sender, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """Naive code runs the view inside the transaction that the failed claim has broken."""
    monkeypatch.setitem(connections.settings[site.alias], "ATOMIC_REQUESTS", in_transaction)
    sql(site.alias, "ALTER TABLE {keys} RENAME TO distlock_away")
    try:
        statuses = [sender.post(shape).status_code for shape in ("atomic_open", "atomic", "plain")]
    finally:
        sql(site.alias, "ALTER TABLE distlock_away RENAME TO {keys}")
    assert (statuses, site.effects) == ([201, 503, 503], 1)


@pytest.mark.parametrize("alias", ["default", "postgres"])
def test_a_store_that_fails_after_the_view(site: Stage, sender: Sender) -> None:
    """In the exactly-once mode nothing is committed then; else the view's answer is given."""
    site.during = lambda request: sql(site.alias, "DELETE FROM {keys}")
    assert (sender.post("atomic").status_code, site.effects) == (503, 0)
    assert (sender.post("plain").status_code, site.effects) == (201, 1)


@pytest.mark.parametrize("shape", ["plain", "async", "open"])
def test_a_site_on_a_cache_that_may_be_down(site: Stage, key: str, settings: Any, shape: str) -> None:
    change(settings, STORAGE="cache", CACHE="redis")
    answers = at_once(lambda: Sender(key).post(shape))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert Sender(key).post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    caches["redis"].clear()
    down = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": down, "redis": down}
    response = Sender(key).post(shape)
    assert response.status_code == 201 if shape == "open" else is_away(response)
    assert (site.effects, states(site.alias)) == (2 if shape == "open" else 1, [])
