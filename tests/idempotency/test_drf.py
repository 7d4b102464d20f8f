"""The mixin for the REST framework: after authentication, with the framework's own answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.urls import clear_url_caches, path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_distlock.idempotency.drf import IdempotentMixin
from django_distlock.idempotency.upkeep import renewal
from tests.idempotency.conftest import MIDDLEWARE, every_database, states
from tests.idempotency.views import act, stage

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

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
    settings.ROOT_URLCONF = "tests.idempotency.test_drf"
    clear_url_caches()
    allowed["yes"] = True
    return site


def post(shape: str, key: str, who: str = "1", data: Any = None, **more: Any) -> Any:
    headers = {"Idempotency-Key": key} | ({"Authorization": who} if who else {})
    client = Client(raise_request_exception=False)
    more = {"content_type": "application/json"} | more
    return client.post(f"/{shape}/", {"a": 1} if data is None else data, headers=headers, **more)


@every_database
@SHAPES
def test_acts_once(api: Stage, key: str, shape: str) -> None:
    first, second = post(shape, key), post(shape, key)
    assert first.json() == second.json() == {"run": 1, "data": {"a": 1}}
    assert (second.status_code, second["Idempotency-Replayed"]) == (201, "true")
    assert second["Content-Type"] == first["Content-Type"] == "application/json"
    assert post(shape, key, data={"a": 2}).status_code == 422
    assert api.effects == 1


@SHAPES
def test_the_user_is_the_one_who_was_authenticated(api: Stage, key: str, shape: str) -> None:
    assert post(shape, key, "1 first token").json()["run"] == 1
    assert post(shape, key, "1 second token").json()["run"] == 1
    assert post(shape, key, "2 other user").json()["run"] == 2


@SHAPES
def test_permissions_of_today_count(api: Stage, key: str, shape: str) -> None:
    """Naive code, in front of the view, would give the stored answer."""
    post(shape, key)
    allowed["yes"] = False
    assert post(shape, key).status_code == 403
    assert post(shape, key, who="").status_code == 401


@every_database
@SHAPES
def test_an_exception_of_the_framework(api: Stage, key: str, shape: str) -> None:
    """Kept as the view's own refusal; in the exactly-once mode it rolls back, and the key with it."""
    assert [post(shape, key, data={"wrong": 1}).status_code for _ in range(2)] == [400, 400]
    if shape == "atomic":
        assert (api.effects, len(api.runs), states(api.alias)) == (0, 2, [])
    else:
        assert (len(api.runs), states(api.alias)) == (1, ["completed"])


@SHAPES
def test_an_error_frees_the_key(api: Stage, key: str, shape: str) -> None:
    assert post(shape, key, data={"boom": 1}).status_code == 500
    assert states(api.alias) == []


@SHAPES
def test_multipart(api: Stage, key: str, shape: str) -> None:
    boundary = {"content_type": "multipart/form-data; boundary=x"}
    body = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
    assert [post(shape, key, data=body, **boundary).status_code for _ in range(2)] == [201, 201]


@SHAPES
def test_without_a_key(api: Stage, shape: str) -> None:
    for _ in range(2):
        Client(headers={"Authorization": "1"}).post(f"/{shape}/", {"a": 1}, content_type="application/json")
    assert api.effects == 2


@pytest.mark.parametrize("alias", ["postgres", "mariadb"])
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("shape", ["orders", "set"])
def test_under_atomic_requests_a_copy_is_answered_at_once(api: Stage, key: str, shape: str) -> None:
    """The claim is in the request's transaction: reading the row would wait for the commit."""
    answers: list[int] = []

    def copy() -> None:
        try:
            answers.append(post(shape, key).status_code)
        finally:
            connections.close_all()

    def during(request: Any) -> None:
        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        thread.join(5)

    api.during = during
    assert post(shape, key).status_code == 201
    assert (answers, len(api.runs), api.effects) == ([409], 1, 1)
    assert (post(shape, key)["Idempotency-Replayed"], api.effects) == ("true", 1)
    api.during = lambda request: None
    assert post(shape, f"{key}-2", data={"boom": 1}).status_code == 500
    assert (api.effects, states(api.alias)) == (1, ["completed"])


def test_a_thread_that_is_told_to_end_leaves_nothing_to_renew(api: Stage, key: str, settings: Any) -> None:
    """Without the middleware the mixin must do it."""
    settings.MIDDLEWARE = MIDDLEWARE[:-1]

    def end(request: Any) -> None:
        raise SystemExit

    api.during = end
    with pytest.raises(SystemExit):
        post("orders", key)
    assert not renewal._due
    assert states(api.alias) == ["claimed"]
