"""Operations of django-ninja: their decorator stands below authentication, and their view hides it."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from django.test import AsyncClient, Client
from django.urls import path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ninja import NinjaAPI, Schema
    from ninja.decorators import decorate_view
    from ninja.security import HttpBearer

from django_distlock.idempotency import idempotent
from tests.idempotency.views import aact, act, stage
from tests.idempotency.world import change, serve, states

if TYPE_CHECKING:
    from tests.idempotency.world import Stage

GOOD = "good"
valid = {GOOD}


class Token(HttpBearer):
    def authenticate(self, request: Any, token: str) -> Any:
        return token if token in valid else None


class Order(Schema):
    amount: int


api = NinjaAPI(auth=Token(), urls_namespace="distlock")


@api.post("/below/")
@idempotent(required=True)
def below(request: Any, order: Order) -> Any:
    act(request)
    return {"run": len(stage.runs), "amount": order.amount}


@api.post("/async_below/")
@idempotent(required=True)
async def async_below(request: Any, order: Order) -> Any:
    await aact(request)
    return {"run": len(stage.runs)}


@api.post("/around/")
@decorate_view(idempotent(required=True, atomic=True))
def around(request: Any, order: Order) -> Any:
    act(request)
    return {"run": len(stage.runs)}


@api.post("/wrong/")
@idempotent(atomic=True)
def wrong(request: Any, order: Order) -> Any:
    act(request)
    return {"run": len(stage.runs)}


urlpatterns = [path("api/", api.urls)]


@pytest.fixture(autouse=True)
def here(site: Stage, settings: Any) -> None:
    serve(settings, __name__)
    change(settings, REPLAY_TO_CREDENTIALS=False)
    valid.add(GOOD)


def post(shape: str, key: str | None, amount: Any = 1, method: str = "POST", token: str = GOOD) -> Any:
    headers = {"Authorization": f"Bearer {token}"} | ({} if key is None else {"Idempotency-Key": key})
    client = Client(raise_request_exception=False)
    return client.generic(method, f"/api/{shape}/", f'{{"amount": {amount}}}', "application/json", headers=headers)


def test_below_the_operation(site: Stage, key: str) -> None:
    """Naive code answers every request 500: put @idempotent on top, which cannot be done here."""
    first, second = post("below", key), post("below", key)
    assert (first.status_code, first.json()) == (200, {"run": 1, "amount": 1})
    assert (second.json(), second["Idempotency-Replayed"]) == (first.json(), "true")
    assert post("below", key, 2).status_code == 422
    assert post("below", None).json()["code"] == "missing_key"
    assert site.effects == 1
    # authentication and validation come first
    valid.discard(GOOD)
    assert post("below", key).status_code == 401
    valid.add(GOOD)
    assert post("below", f"{key}2", '"many"').status_code == 422
    assert states(site.alias) == ["completed"]


def test_an_async_operation(site: Stage, key: str) -> None:
    async def send() -> Any:
        headers = {"Authorization": f"Bearer {GOOD}", "Idempotency-Key": key}
        return await AsyncClient().post(
            "/api/async_below/", '{"amount": 1}', content_type="application/json", headers=headers
        )

    assert [asyncio.run(send()).json() for _ in range(2)] == [{"run": 1}] * 2
    assert site.effects == 1


def test_around_the_operation_exactly_once(site: Stage, key: str) -> None:
    """Authentication is below, so the stored answer is not given to a token that nothing has checked."""
    assert post("around", key).json() == {"run": 1}
    again = post("around", key)
    assert (again.status_code, again.json()["code"]) == (409, "already_completed")
    assert site.effects == 1


def test_exactly_once_needs_the_response(site: Stage, key: str, caplog: Any) -> None:
    assert post("wrong", key).status_code == 500
    assert "@decorate_view(idempotent(atomic=True))" in caplog.text
    assert (site.effects, states(site.alias)) == (0, [])
