"""Requests as tasks: duplicates at once, and clients that go."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.test import AsyncClient

from tests.conftest import eventually
from tests.idempotency.conftest import Sender, states
from tests.idempotency.test_races import CROWD

if TYPE_CHECKING:
    from tests.idempotency.views import Stage


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


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain", "atomic"])
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
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}

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
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1
