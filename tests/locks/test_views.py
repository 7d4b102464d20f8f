"""Locked views of every shape under Django's own handlers, sync and async: the lock is held while the view runs, and
only then."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.test import AsyncClient, Client
from django.test.client import AsyncRequestFactory
from django.urls import resolve

from django_distlock import LockNotAcquired
from tests.locks import views
from tests.locks.elsewhere import held_elsewhere, is_free
from tests.locks.views import NAME, SECOND, stage

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.urls("tests.locks.views")


def get_sync(path: str) -> Any:
    return Client().get(path)


def get_async(path: str) -> Any:
    async def get() -> Any:
        return await AsyncClient().get(path)

    return asyncio.run(get())


both_clients = pytest.mark.parametrize("get", [get_sync, get_async])


def said(response: Any) -> str:
    return str(response.content.decode().strip('"'))


@both_clients
@pytest.mark.parametrize("shape", views.LOCKED)
def test_r1_lock_is_held_while_the_view_runs(get: Callable[..., Any], shape: str) -> None:
    response = get(f"/{shape}/")
    assert response.status_code == 200
    assert said(response) == NAME
    assert is_free(NAME)


@both_clients
@pytest.mark.parametrize("shape", views.LOCKED)
def test_r1_busy_view_is_not_entered(get: Callable[..., Any], shape: str) -> None:
    with held_elsewhere(NAME):
        response = get(f"/{shape}/")
    assert response.status_code == 503
    assert NAME not in said(response)
    assert is_free(NAME)


@both_clients
@pytest.mark.parametrize("shape", views.STACKED)
def test_stacked_locks_are_all_held(get: Callable[..., Any], shape: str) -> None:
    assert said(get(f"/{shape}/")) == f"{NAME},{SECOND}"
    assert is_free(NAME)
    assert is_free(SECOND)


@both_clients
@pytest.mark.parametrize("shape", views.STACKED)
@pytest.mark.parametrize("name", [NAME, SECOND])
def test_r7_busy_one_of_the_stack_leaves_nothing_held(get: Callable[..., Any], shape: str, name: str) -> None:
    with held_elsewhere(name):
        assert get(f"/{shape}/").status_code == 503
        assert is_free(SECOND if name == NAME else NAME)


@both_clients
@pytest.mark.parametrize("shape", views.HANDING_OVER)
def test_on_busy_answers_in_place_of_the_view(get: Callable[..., Any], shape: str) -> None:
    path = f"/{shape}/"
    assert said(get(path)) == NAME
    with held_elsewhere(NAME):
        response = get(path)
    assert response.status_code == 409
    assert said(response) == f"busy {path} {{}}"


@both_clients
@pytest.mark.parametrize("shape", views.FROM_URL)
def test_name_comes_from_the_url(get: Callable[..., Any], shape: str) -> None:
    """Two requests for two objects do not wait for each other."""
    also = f"{NAME}," if shape == "stacked" else ""
    assert said(get(f"/by-pk/{shape}/7/")) == f"{also}decorators:7"
    with held_elsewhere("decorators:7"):
        assert get(f"/by-pk/{shape}/7/").status_code == 503
        other = get(f"/by-pk/{shape}/8/")
        assert other.status_code == 200
        assert said(other).endswith("decorators:8")


@both_clients
@pytest.mark.parametrize("shape", ["locked_raises", "async_locked_raises"])
def test_lock_is_released_when_the_view_raises(get: Callable[..., Any], shape: str) -> None:
    stage.error = ValueError("the view's own")
    with pytest.raises(ValueError, match="the view's own"):
        get(f"/{shape}/")
    assert is_free(NAME)


@both_clients
def test_refused_method_does_not_ask_for_the_lock(get: Callable[..., Any]) -> None:
    """require_POST above the lock, as the documentation says."""
    with held_elsewhere(NAME):
        assert get("/post_only/").status_code == 405
        assert Client().post("/post_only/").status_code == 503
    assert said(Client().post("/post_only/")) == NAME


def test_semaphore_on_a_view() -> None:
    from django_distlock import semaphore

    with semaphore("decorators:slots", 1, using="memory"):
        assert get_sync("/slots/").status_code == 503
    assert said(get_sync("/slots/")) == "in"


@pytest.mark.parametrize("shape", views.LOCKED)
def test_view_is_async_exactly_if_it_was(shape: str) -> None:
    """Django asks this to choose how to call the view; a wrong answer runs it in a thread, or not at all."""
    assert iscoroutinefunction(resolve(f"/{shape}/").func) == shape.startswith("async")


@pytest.mark.parametrize("shape", views.LOCKED)
def test_csrf_exemption_survives(shape: str) -> None:
    view = resolve(f"/{shape}/").func
    exempt = "csrf_exempt" in shape or shape.startswith("drf")
    assert bool(getattr(view, "csrf_exempt", False)) == exempt
    response = Client(enforce_csrf_checks=True).post(f"/{shape}/")
    assert (response.status_code == 403) != exempt


@both_clients
@pytest.mark.parametrize("shape", [shape for shape in views.LOCKED if "never_cache" in shape])
def test_never_cache_survives(get: Callable[..., Any], shape: str) -> None:
    assert "no-store" in get(f"/{shape}/")["Cache-Control"]


@pytest.mark.parametrize("shape", ["dispatch", "async_dispatch", "get", "drf", "around_as_view", "drf_viewset"])
def test_class_of_the_view_is_still_known(shape: str) -> None:
    """Django's own tools read it from the view: the debug page, admindocs, permission middleware."""
    view: Any = resolve(f"/{shape}/").func
    assert hasattr(view, "cls" if "drf" in shape else "view_class")


@pytest.mark.parametrize("shape", views.LOCKED)
def test_wsgi_application(shape: str) -> None:
    """As a WSGI server calls it; an async view runs on a loop that Django starts for it."""
    started: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": f"/{shape}/",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    application = get_wsgi_application()
    with held_elsewhere(NAME):
        busy = application(environ, lambda status, headers: started.append(status))
        busy.close()  # type: ignore[attr-defined]
    free = application(environ, lambda status, headers: started.append(status))
    assert b"".join(free).strip(b'"') == NAME.encode()
    free.close()  # type: ignore[attr-defined]
    assert started == ["503 Service Unavailable", "200 OK"]
    assert is_free(NAME)


async def ask_asgi(path: str) -> tuple[int, bytes]:
    scope = AsyncRequestFactory()._base_scope(path=path)  # type: ignore[attr-defined]
    communicator = ApplicationCommunicator(get_asgi_application(), scope)
    await communicator.send_input({"type": "http.request"})
    start = await communicator.receive_output(10)
    body = await communicator.receive_output(10)
    await communicator.wait(10)
    return start["status"], body["body"].strip(b'"')


@pytest.mark.parametrize("shape", views.LOCKED)
def test_asgi_application(shape: str) -> None:
    with held_elsewhere(NAME):
        assert asyncio.run(ask_asgi(f"/{shape}/"))[0] == 503
    assert asyncio.run(ask_asgi(f"/{shape}/")) == (200, NAME.encode())
    assert is_free(NAME)


@pytest.mark.parametrize("shape", ["function", "dispatch", "get"])
def test_plain_call_of_a_view(shape: str, rf: Any) -> None:
    """By other code, without a handler and a resolver match."""
    view = views.LOCKED[shape]
    with held_elsewhere(NAME), pytest.raises(LockNotAcquired):
        view(rf.get("/"))
    assert said(view(rf.get("/"))) == NAME


@pytest.mark.parametrize("shape", ["async", "async_dispatch", "async_get", "async_around_as_view"])
def test_plain_await_of_an_async_view(shape: str, rf: Any) -> None:
    """async_dispatch has no resolver match here: it must be awaited inside the lock all the same."""
    view = views.LOCKED[shape]

    async def call() -> Any:
        return await view(rf.get("/"))

    with held_elsewhere(NAME), pytest.raises(LockNotAcquired):
        asyncio.run(call())
    assert said(asyncio.run(call())) == NAME
    assert is_free(NAME)
