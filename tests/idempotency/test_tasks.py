"""Requests as tasks: duplicates at once, and clients that go."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient
from django.utils.decorators import async_only_middleware

from tests.conftest import PATIENCE, eventually
from tests.idempotency.world import CROWD, Sender, Stage, client_leaves, states

language: contextvars.ContextVar[str] = contextvars.ContextVar("language", default="none")
found: dict[str, Any] = {}


@async_only_middleware
def outer(get_response: Any) -> Any:
    """A middleware above all others, as one that logs or traces: it reads what view and middleware below have set."""

    async def middleware(request: Any) -> Any:
        found["task"] = asyncio.current_task()
        response = await get_response(request)
        found["seen"] = language.get()
        return response

    return middleware


@pytest.fixture
def traced(site: Stage, settings: Any) -> None:
    found.clear()
    settings.MIDDLEWARE = [f"{__name__}.outer", *settings.MIDDLEWARE]

    async def during(request: Any) -> None:
        found["view"] = asyncio.current_task()
        language.set("of the view")

    site.during = during


def post(shape: str, key: str | None = None, method: str = "post", **sent: Any) -> Any:
    """The coroutine of a request; its key is that of the header, or what a webhook finds."""
    headers = {"Authorization": "Bearer a"}
    if key is not None:
        headers["X-Event" if "webhook" in shape else "Idempotency-Key"] = key
    return getattr(AsyncClient(), method)(f"/{shape}/", headers=headers, **sent)


FORM: dict[str, Any] = {"data": {"name": "x"}}
JSON = {**FORM, "content_type": "application/json"}


PLAIN = [("async", "get", {}), ("async", "post", JSON), ("async_decorated", "post", JSON), ("alone", "post", JSON)]
KEYED = [("async", JSON, 201), ("async", FORM, 500), ("async_decorated", FORM, 201), ("async_webhook", JSON, 201)]


def test_context_variables_of_the_view_reach_the_middleware_above(site: Stage, traced: None, settings: Any) -> None:
    """Without a key the request stays in its task, as a second one costs time; with a key it has one of its own."""
    for number, (shape, sent, status) in enumerate(KEYED):
        site.answer = lambda request, status=status: HttpResponse(status=status)
        assert asyncio.run(post(shape, f"key{number}", **sent)).status_code == status
        assert found.pop("seen") == "of the view", shape
    for shape, method, sent in PLAIN:
        if shape == "alone":
            settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "Idempotency" not in path]
            shape = "async_decorated"
        assert asyncio.run(post(shape, None, method, **sent)).status_code == 201
        assert found.pop("seen") == "of the view", shape
        assert found["view"] is found["task"]


@pytest.mark.parametrize("shape", ["async", "plain"])
def test_duplicate_tasks_act_once(site: Stage, key: str, shape: str) -> None:
    async def race() -> list[Any]:
        return await asyncio.gather(*(post(shape, key, **JSON) for _ in range(CROWD)))

    assert {answer.status_code for answer in asyncio.run(race())} <= {201, 409}
    assert site.effects == 1


async def leave(request: Any, begun: threading.Event, go_on: Any) -> None:
    await client_leaves(asyncio.ensure_future(request), begun, go_on)


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain", "atomic", "webhook", "async_webhook"])
def test_a_client_that_goes_leaves_the_answer_behind(site: Stage, key: str, sender: Sender, shape: str) -> None:
    """Naive code loses it: CancelledError passes through the middleware after the view has acted."""
    acted, go_on = threading.Event(), threading.Event()

    def pause(request: Any) -> Any:
        acted.set()
        return asyncio.to_thread(go_on.wait, PATIENCE) if shape.startswith("async") else go_on.wait(PATIENCE)

    site.during = pause
    asyncio.run(leave(post(shape, key, **JSON), acted, go_on.set))
    eventually(lambda: states(site.alias) == ["completed"], lambda: f"not kept: {states(site.alias)}")
    site.during = lambda request: None
    assert sender.post(shape, headers={"X-Event": key})["Idempotency-Replayed"] == "true"
    assert site.effects == 1
