"""LockBusyMiddleware: a busy lock that leaves a view is 503 with Retry-After; every other error stays what it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.utils import translation

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    DistlockError,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    UnsupportedOperation,
)
from django_distlock.middleware import LockBusyMiddleware
from tests.locks.elsewhere import held_elsewhere
from tests.locks.views import stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import RequestFactory

pytestmark = pytest.mark.urls("tests.locks.views")

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
LOCK = "decorators:view"
PATHS = ("function", "async", "dispatch", "async_dispatch", "get", "async_get", "drf", "drf_api_view")


def get_sync(path: str, **headers: str) -> Any:
    return Client(raise_request_exception=False).get(f"/{path}/", headers=headers)


def get_async(path: str, **headers: str) -> Any:
    async def get() -> Any:
        return await AsyncClient(raise_request_exception=False).get(f"/{path}/", headers=headers)

    return asyncio.run(get())


both_clients = pytest.mark.parametrize("get", [get_sync, get_async])


@both_clients
@pytest.mark.parametrize("path", PATHS)
def test_busy_page_for_a_browser(get: Callable[..., Any], path: str) -> None:
    with held_elsewhere(LOCK):
        response = get(path, accept=BROWSER)
    assert response.status_code == 503
    assert response["Content-Type"].startswith("text/html")
    assert response["Retry-After"] == "2"
    assert response["Cache-Control"] == "no-store"
    assert "Accept" in response["Vary"]
    page = response.content.decode()
    assert page.startswith("<!doctype html>")
    assert "<h1>Busy</h1>" in page
    assert "Waiting 2 seconds" in page
    assert LOCK not in page, "the name of a lock may hold what is nobody's business"
    assert get(path).status_code == 200


@both_clients
@pytest.mark.parametrize("path", PATHS)
def test_busy_problem_for_a_program(get: Callable[..., Any], path: str) -> None:
    with held_elsewhere(LOCK):
        response = get(path, accept="application/json")
    assert response.status_code == 503
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "2"
    assert response["Cache-Control"] == "no-store"
    problem = response.json()
    assert problem == {"type": "about:blank", "title": "Busy", "status": 503, "detail": problem["detail"]}
    assert problem["detail"].startswith("Somebody else is doing the same thing right now.")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "text/html"),
        ("*/*", "text/html"),
        ("text/*", "text/html"),
        ("application/json", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("application/json;q=0.9, text/html;q=0.1", "application/problem+json"),
        ("text/html, application/json;q=0.9", "text/html"),
        ("image/png", "application/problem+json"),
        ("this is no media type", "application/problem+json"),
    ],
)
def test_preference_of_the_client(accept: str | None, kind: str) -> None:
    with held_elsewhere(LOCK):
        response = get_sync("function", **({} if accept is None else {"accept": accept}))
    assert response.status_code == 503
    assert response["Content-Type"].split(";")[0] == kind


def test_head_and_post_of_a_busy_view() -> None:
    client = Client(raise_request_exception=False)
    with held_elsewhere(LOCK):
        head, post = client.head("/function/"), client.post("/function/")
    assert head.status_code == post.status_code == 503
    assert head["Retry-After"] == "2"
    assert head.content == b""


def test_vary_of_other_middleware_is_kept() -> None:
    """The locale's header is added after ours."""
    from django.conf import settings
    from django.test import override_settings

    middleware = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=middleware), held_elsewhere(LOCK):
        response = get_sync("function", accept=BROWSER)
    assert {"Accept", "Accept-Language"} <= {header.strip() for header in response["Vary"].split(",")}


@both_clients
@pytest.mark.parametrize("timed_out", [False, True])
def test_lock_timeout_is_busy_too(get: Callable[..., Any], timed_out: bool) -> None:
    """A busy lock that was met in the body of the view, not by a decorator."""
    stage.error = LockTimeout() if timed_out else LockNotAcquired()
    assert get("raises").status_code == 503
    assert get("async_raises").status_code == 503


OTHERS = [
    DistlockError(),
    LockLost(),
    LockNotHeld(),
    DeadlockDetected(),
    UnsupportedOperation(),
    BackendUnavailable(),
    TimeoutError("not ours"),
    ValueError("no"),
]


@both_clients
@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_other_errors_are_untouched(get: Callable[..., Any], error: Exception, caplog: Any) -> None:
    stage.error = error
    for path in ("raises", "async_raises"):
        response = get(path)
        assert response.status_code == 500
        assert "Retry-After" not in response
    with pytest.raises(type(error)) as raised:
        Client().get("/raises/")
    assert raised.value is error


@both_clients
def test_without_the_middleware_a_busy_lock_is_an_error(get: Callable[..., Any], settings: Any) -> None:
    """Else the tests above could pass by something else's doing."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "LockBusy" not in name]
    with held_elsewhere(LOCK):
        assert get("function").status_code == 500


def test_middleware_is_as_sync_as_what_is_below(rf: RequestFactory) -> None:
    def below(request: Any) -> HttpResponse:
        return HttpResponse("sync")

    async def abelow(request: Any) -> HttpResponse:
        return HttpResponse("async")

    middleware, amiddleware = LockBusyMiddleware(below), LockBusyMiddleware(abelow)
    assert not iscoroutinefunction(middleware)
    assert iscoroutinefunction(amiddleware)
    assert middleware(rf.get("/")).content == b"sync"  # type: ignore[union-attr]
    assert asyncio.run(amiddleware(rf.get("/"))).content == b"async"  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "header"), [(10, "10"), (0.2, "1"), (0, "1"), (2.5, "3"), (59.0, "59")])
def test_retry_after_of_a_subclass_in_whole_seconds(rf: RequestFactory, seconds: float, header: str) -> None:
    """RFC 9110: Retry-After is a whole number of seconds; 0 would invite a storm."""

    class Patient(LockBusyMiddleware):
        retry_after = seconds

    response = Patient(lambda request: HttpResponse()).process_exception(rf.get("/"), LockNotAcquired("x"))
    assert response is not None
    assert response["Retry-After"] == header
    assert (f"Waiting {header} second{'' if header == '1' else 's'} is enough") in response.content.decode()


def test_page_under_another_language(rf: RequestFactory) -> None:
    """Without a translation the page is English, and is not read to anybody with an Arabic voice."""
    with translation.override("ar"):
        response = LockBusyMiddleware(lambda request: HttpResponse()).process_exception(
            rf.get("/"), LockNotAcquired("x")
        )
    assert response is not None
    assert '<html lang="en">' in response.content.decode()
