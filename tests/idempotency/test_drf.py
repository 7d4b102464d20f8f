"""The mixin for the REST framework: after authentication, with the framework's own answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_distlock.idempotency.drf import IdempotentMixin
from tests.idempotency.views import act, stage
from tests.idempotency.world import MIDDLEWARE, at_once, die, on_servers, serve, states

if TYPE_CHECKING:
    from tests.idempotency.world import Stage

allowed = {"yes": True}


class ByToken(BaseAuthentication):
    """Two tokens may be of one user."""

    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "")
        return (User(pk=int(token[0]), username=token), token) if token else None

    def authenticate_header(self, request: Any) -> str:
        return "Token"


class Allowed(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return request.user.is_authenticated and allowed["yes"]


class Orders(IdempotentMixin, APIView):
    authentication_classes: ClassVar[Any] = (ByToken,)
    permission_classes: ClassVar[Any] = (Allowed,)
    answer: ClassVar[Any] = lambda request: Response({"run": len(stage.runs), "data": request.data}, status=201)

    def post(self, request: Any) -> Any:
        act(request._request)
        if "wrong" in request.data:
            raise ValidationError("wrong")
        if "boom" in request.data:
            raise RuntimeError("boom")
        return type(self).answer(request)


class AtomicOrders(Orders):
    idempotency_options: ClassVar[Any] = {"atomic": True}


class OrderSet(Orders, ViewSet):  # type: ignore[misc]
    def create(self, request: Any) -> Any:
        return Orders.post(self, request)

    post = None  # type: ignore[assignment]


router = SimpleRouter()
router.register("set", OrderSet, basename="set")
urlpatterns = [path("orders/", Orders.as_view()), path("atomic/", AtomicOrders.as_view()), *router.urls]
SHAPES = pytest.mark.parametrize("shape", ["orders", "atomic", "set"])


@pytest.fixture
def api(site: Stage, settings: Any) -> Stage:
    serve(settings, __name__)
    allowed["yes"] = True
    return site


def post(shape: str, key: str, who: str = "1", data: Any = None, **more: Any) -> Any:
    headers = {"Idempotency-Key": key} | ({"Authorization": who} if who else {})
    client = Client(raise_request_exception=False)
    more = {"content_type": "application/json"} | more
    return client.post(f"/{shape}/", {"a": 1} if data is None else data, headers=headers, **more)


@SHAPES
def test_acts_once(api: Stage, key: str, shape: str) -> None:
    """For the user who was authenticated, whatever token he has. Permissions of today count: naive code, in front of
    the view, would give the stored answer."""
    first, second = post(shape, key, "1 first token"), post(shape, key, "1 second token")
    assert first.json() == second.json() == {"run": 1, "data": {"a": 1}}
    assert (second.status_code, second["Idempotency-Replayed"]) == (201, "true")
    assert second["Content-Type"] == first["Content-Type"] == "application/json"
    assert post(shape, key, data={"a": 2}).status_code == 422
    assert post(shape, key, "2 other user").json()["run"] == 2
    for _ in range(2):
        Client(headers={"Authorization": "1"}).post(f"/{shape}/", {"a": 1}, content_type="application/json")
    assert api.effects == 4
    allowed["yes"] = False
    assert post(shape, key).status_code == 403
    assert post(shape, key, who="").status_code == 401


@SHAPES
def test_an_exception_of_the_framework(api: Stage, key: str, shape: str) -> None:
    """Kept as the view's own refusal; in the exactly-once mode it rolls back, and the key with it. Any other error
    frees the key."""
    assert post(shape, f"{key}-2", data={"boom": 1}).status_code == 500
    assert states(api.alias) == []
    before = api.effects
    assert [post(shape, key, data={"wrong": 1}).status_code for _ in range(2)] == [400, 400]
    if shape == "atomic":
        assert (api.effects, len(api.runs), states(api.alias)) == (0, 3, [])
    else:
        assert (api.effects - before, states(api.alias)) == (1, ["completed"])


@on_servers
@pytest.mark.usefixtures("atomic_requests")
def test_under_atomic_requests_a_copy_is_answered_at_once(api: Stage, key: str) -> None:
    """The claim is in the request's transaction: reading the row would wait for the commit."""
    answers: list[int] = []
    api.during = lambda request: answers.extend(at_once(lambda: post("orders", key).status_code, 1))
    assert post("orders", key).status_code == 201
    assert (answers, len(api.runs), api.effects) == ([409], 1, 1)
    assert (post("orders", key)["Idempotency-Replayed"], api.effects) == ("true", 1)
    api.during = lambda request: None
    assert post("orders", f"{key}-2", data={"boom": 1}).status_code == 500
    assert (api.effects, states(api.alias)) == (1, ["completed"])


def test_a_thread_that_is_told_to_end_leaves_nothing_to_renew(api: Stage, key: str, settings: Any) -> None:
    """Without the middleware the mixin must do it."""
    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    die(api, lambda: post("orders", key))
    assert states(api.alias) == ["claimed"]
