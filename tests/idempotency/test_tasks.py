"""Requests as tasks: duplicates at once, and clients that go."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient
from django.utils.decorators import async_only_middleware

from tests.conftest import eventually
from tests.idempotency.conftest import Sender, states
from tests.idempotency.test_races import CROWD

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

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
def under_a_middleware(site: Stage, settings: Any) -> None:
    found.clear()
    settings.MIDDLEWARE = ["tests.idempotency.test_tasks.outer", *settings.MIDDLEWARE]

    async def during(request: Any) -> None:
        found["view"] = asyncio.current_task()
        language.set("of the view")

    site.during = during


def sent_by_task(method: str, shape: str, **sent: Any) -> Any:
    client = AsyncClient(headers={"Authorization": "Bearer a"})
    return asyncio.run(getattr(client, method)(f"/{shape}/", **sent))


JSON = {"data": {"a": 1}, "content_type": "application/json"}


@pytest.mark.parametrize("with_middleware", [True, False], ids=["", "no-middleware"])
@pytest.mark.parametrize("shape", ["async", "async_decorated"])
@pytest.mark.parametrize(("method", "sent"), [("get", {}), ("post", JSON)], ids=["get", "json"])
@pytest.mark.usefixtures("under_a_middleware")
def test_a_request_without_a_key_stays_in_its_task(
    site: Stage, settings: Any, method: str, sent: Any, shape: str, with_middleware: bool
) -> None:
    """A second task costs time, and middleware above would not see the ContextVars that the view sets."""
    if not with_middleware:
        settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "Idempotency" not in path]
    assert sent_by_task(method, shape, **sent).status_code == 201
    assert found["view"] is found["task"]
    assert found["seen"] == "of the view"


@pytest.mark.parametrize("shape", ["async", "async_decorated", "async_webhook"])
@pytest.mark.parametrize("sent", [{"data": {"a": 1}}, JSON], ids=["form", "json"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.usefixtures("under_a_middleware")
def test_context_variables_reach_the_middleware_above(
    site: Stage, key: str, shape: str, sent: Any, fails: bool
) -> None:
    """Also of a request with a key, which is carried out in a task of its own."""
    if fails:
        site.answer = lambda request: HttpResponse(status=500)
    response = sent_by_task("post", shape, **sent, headers={"Idempotency-Key": key, "X-Event": key})
    assert response.status_code == (500 if fails else 201)
    assert found["seen"] == "of the view"


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain"])
def test_duplicate_tasks_act_once(site: Stage, key: str, shape: str) -> None:
    client = AsyncClient()
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}

    async def race() -> list[Any]:
        posts = [
            client.post(f"/{shape}/", {"a": 1}, content_type="application/json", headers=headers) for _ in range(CROWD)
        ]
        return await asyncio.gather(*posts)

    answers = asyncio.run(race())
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert site.effects == 1


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain", "atomic", "webhook", "async_webhook"])
def test_a_client_that_goes_leaves_the_answer_behind(site: Stage, key: str, sender: Sender, shape: str) -> None:
    """Naive code loses it: CancelledError passes through the middleware after the view has acted."""
    acted = threading.Event()
    go_on = threading.Event()

    def pause(request: Any) -> Any:
        acted.set()
        if shape.startswith("async"):
            return asyncio.sleep(0.05)
        return go_on.wait(5)

    site.during = pause
    headers = {"Authorization": "Bearer a", **({"X-Event": key} if "webhook" in shape else {"Idempotency-Key": key})}

    async def leave() -> None:
        post = asyncio.ensure_future(
            AsyncClient().post(f"/{shape}/", {"name": "x"}, content_type="application/json", headers=headers)
        )
        while not acted.is_set():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.005)
        post.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await post
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    asyncio.run(leave())
    eventually(lambda: states(site.alias) == ["completed"], "the answer was not kept")
    site.during = lambda request: None
    assert sender.post(shape, headers=headers)["Idempotency-Replayed"] == "true"
    assert site.effects == 1
