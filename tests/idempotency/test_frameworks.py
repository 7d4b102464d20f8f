"""The mixin for the REST framework, and operations of django-ninja."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.test import AsyncClient
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ninja import NinjaAPI, Schema
    from ninja.decorators import decorate_view
    from ninja.security import HttpBearer

from django_distlock.idempotency import idempotent
from django_distlock.idempotency.drf import IdempotentMixin
from tests.conftest import PATIENCE
from tests.idempotency.views import aact, act
from tests.idempotency.world import Sender, Stage, at_once, change, client_leaves, on_servers, stage, states

accepted = {"yes": True}


class Odd:
    """A user that is in no table; of another one, if it has a number."""

    is_authenticated = True

    def __init__(self, pk: int | None = None) -> None:
        if pk:
            self.pk = pk


class Tokens(BaseAuthentication):
    """Users by their number; "service" is a credential without a user, "odd" a user without a number."""

    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "")
        if token.startswith("wrong"):
            raise AuthenticationFailed
        kinds = {
            "service": lambda number: AnonymousUser(),
            "odd": lambda number: Odd(),
            "device": lambda number: Odd(int(number)),
            "user": lambda number: User(pk=int(number), username=token),
        }
        kind = token.partition(" ")[0].rstrip("12")
        return (kinds[kind](token[len(kind) : len(kind) + 1]), token) if kind in kinds else None

    def authenticate_header(self, request: Any) -> str:
        return "Token"


class Allowed(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return accepted["yes"] and (request.user.is_authenticated or "status" in request.data)


class Bare(APIView):
    authentication_classes: ClassVar[Any] = (Tokens,)
    permission_classes: ClassVar[Any] = (Allowed,)

    def post(self, request: Any) -> Any:
        act(request._request)
        if "wrong" in request.data:
            raise ValidationError("wrong")
        if "boom" in request.data:
            raise RuntimeError("boom")
        return Response({"run": len(stage.runs), "data": request.data}, status=request.data.get("status", 201))


class Orders(IdempotentMixin, Bare):
    pass


class AtomicOrders(Orders):
    idempotency_options: ClassVar[Any] = {"atomic": True}


class OrderSet(Orders, ViewSet):  # type: ignore[misc]
    create = Bare.post
    post = None  # type: ignore[assignment]


@api_view(["POST"])
@authentication_classes([Tokens])
@permission_classes([Allowed])
@idempotent
def function(request: Any) -> Any:
    return Bare.post(None, request)  # type: ignore[arg-type]


class Bearer(HttpBearer):
    def authenticate(self, request: Any, token: str) -> Any:
        return token if accepted["yes"] else None


class Order(Schema):
    amount: int


api = NinjaAPI(auth=Bearer(), urls_namespace="distlock")


@api.post("/below/")
@idempotent(required=True)
def below(request: Any, order: Order) -> Any:
    act(request)
    return {"run": len(stage.runs), "amount": order.amount}


@api.post("/hook/")
@idempotent(key=lambda request: request.headers.get("X-Event"))
async def hook(request: Any, order: Order) -> Any:
    await aact(request)
    return {"amount": order.amount}


@api.post("/around/")
@decorate_view(idempotent(required=True, atomic=True))
def around(request: Any, order: Order) -> Any:
    act(request)
    return {"run": len(stage.runs)}


@api.post("/wrong/")
@idempotent(atomic=True)
def wrong(request: Any, order: Order) -> Any:
    act(request)


router = SimpleRouter()
router.register("set", OrderSet, basename="set")
urlpatterns = [
    path("bare/", Bare.as_view()),
    path("orders/", Orders.as_view()),
    path("atomic/", AtomicOrders.as_view()),
    path("function/", function),
    *router.urls,
    path("api/", api.urls),
]
SHAPES = pytest.mark.parametrize("shape", ["orders", "atomic", "set"])


@pytest.fixture(autouse=True)
def here(site: Stage) -> None:
    accepted["yes"] = True


def post(shape: str, key: str | None = "key", who: str = "user1", **data: Any) -> Any:
    return Sender(key, who=who).post(shape, data or {"amount": 1})


# -- the REST framework


@SHAPES
def test_acts_once(site: Stage, key: str, shape: str) -> None:
    """For the user who was authenticated, whatever token he has; permissions of today count."""
    first, second = post(shape, key, "user1 first token"), post(shape, key, "user1 second token")
    assert first.json() == second.json() == {"run": 1, "data": {"amount": 1}}
    assert (second.status_code, second["Idempotency-Replayed"]) == (201, "true")
    assert second["Content-Type"] == first["Content-Type"] == "application/json"
    assert post(shape, key, amount=2).status_code == 422
    assert post(shape, key, "user2").json()["run"] == 2
    for _ in range(2):
        post(shape, None)
    assert site.effects == 4
    accepted["yes"] = False
    assert post(shape, key).status_code == 403
    assert post(shape, key, who="").status_code == 401


def test_permissions_of_today_count_for_a_decorated_function_too(site: Stage, key: str) -> None:
    assert [post("function", key).get("Idempotency-Replayed") for _ in range(2)] == [None, "true"]
    # this permission parses the body before the decorator compares it
    assert [post("function", "2", who="service", status=201).status_code for _ in range(2)] == [201, 201]
    accepted["yes"] = False
    assert (post("function", key).status_code, site.effects) == (403, 2)


@SHAPES
def test_an_exception_of_the_framework(site: Stage, key: str, shape: str) -> None:
    """Frees the key, as any other error; in the exactly-once mode it rolls back."""
    assert post(shape, f"{key}-2", boom=1).status_code == 500
    assert states(site.alias) == []
    before = site.effects
    assert [post(shape, key, wrong=1).status_code for _ in range(2)] == [400, 400]
    assert (len(site.runs), states(site.alias)) == (3, [])
    assert site.effects - before == (0 if shape == "atomic" else 2)


@on_servers
@pytest.mark.usefixtures("atomic_requests")
def test_under_atomic_requests_a_copy_is_answered_at_once(site: Stage, key: str) -> None:
    """The claim is in the request's transaction: reading the row would wait for the commit."""
    answers: list[int] = []
    site.during = lambda request: answers.extend(at_once(lambda: post("orders", key).status_code, 1))
    assert post("orders", key).status_code == 201
    assert (answers, len(site.runs), site.effects) == ([409], 1, 1)
    assert (post("orders", key)["Idempotency-Replayed"], site.effects) == ("true", 1)
    site.during = lambda request: None
    assert post("orders", f"{key}-2", boom=1).status_code == 500
    assert (site.effects, states(site.alias)) == (1, ["completed"])


# Without the mixin nothing shows that a credential without a user was accepted.
@pytest.mark.parametrize(("shape", "who"), [("bare", "user1"), ("orders", "user1"), ("orders", "service")])
def test_refusals_of_who_was_authenticated_are_kept_and_of_others_not(site: Stage, shape: str, who: str) -> None:
    assert [post(shape, who="invented", status=422).status_code for _ in range(2)] == [422, 422]
    assert [post(shape, who="wrong", status=422).status_code for _ in range(2)] == [401, 401]
    assert (len(site.runs), states(site.alias)) == (2, [])
    assert [post(shape, who=who, status=422).status_code for _ in range(2)] == [422, 422]
    assert (len(site.runs), states(site.alias)) == (3, ["completed"])


def test_users_of_two_kinds_with_one_number_never_share_an_answer(site: Stage) -> None:
    """Naive code takes device 1 for user 1, and all that have no number for one."""
    people = ["user1", "device1", "user2", "odd1", "odd2"]
    for _ in range(2):
        assert [post("orders", who=who).json()["run"] for who in people] == [1, 2, 3, 4, 5]
    assert site.effects == len(people)


# -- django-ninja: a decorator stands below authentication, and its view hides it


def operate(shape: str, key: str | None, amount: Any = 1) -> Any:
    return post(f"api/{shape}", key, "Bearer good", amount=amount)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_below_the_operation(
    site: Stage, key: str, settings: Any, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """Naive code answers every request 500: put @idempotent on top, which cannot be done here."""
    monkeypatch.setitem(connections.settings[site.alias], "ATOMIC_REQUESTS", in_transaction)
    change(settings, REPLAY_TO_CREDENTIALS=False)
    first, second = operate("below", key), operate("below", key)
    assert (first.status_code, first.json()) == (200, {"run": 1, "amount": 1})
    assert (second.json(), second["Idempotency-Replayed"]) == (first.json(), "true")
    assert operate("below", key, 2).status_code == 422
    assert operate("below", None).json()["code"] == "missing_key"
    assert operate("below", f"{key}2", "many").status_code == 422
    accepted["yes"] = False
    assert operate("below", key).status_code == 401
    assert (site.effects, states(site.alias)) == (1, ["completed"])


def test_a_client_that_goes_from_an_operation_with_a_key_of_its_own(site: Stage, key: str) -> None:
    """The answer is lost with it, and the work is not done again."""
    acted, go_on = threading.Event(), threading.Event()

    def pause(request: Any) -> Any:
        acted.set()
        return asyncio.to_thread(go_on.wait, PATIENCE)

    async def leave() -> None:
        headers = {"Authorization": "Bearer good", "X-Event": key}
        sent = AsyncClient().post("/api/hook/", {"amount": 1}, content_type="application/json", headers=headers)
        await client_leaves(asyncio.ensure_future(sent), acted, go_on.set)

    site.during = pause
    asyncio.run(leave())
    site.during = lambda request: None
    again = Sender(who="Bearer good").post("api/hook", {"amount": 1}, headers={"X-Event": key})
    assert (again.status_code, again.json()["code"], site.effects) == (409, "already_completed", 1)


def test_around_the_operation_exactly_once(site: Stage, key: str, settings: Any, caplog: Any) -> None:
    """Authentication is below, so the stored answer is not given to a token that nothing has checked."""
    change(settings, REPLAY_TO_CREDENTIALS=False)
    assert operate("around", key).json() == {"run": 1}
    again = operate("around", key)
    assert (again.status_code, again.json()["code"]) == (409, "already_completed")
    assert operate("wrong", f"{key}2").status_code == 500
    assert "@decorate_view(idempotent(atomic=True))" in caplog.text
    assert (site.effects, states(site.alias)) == (1, ["completed"])
