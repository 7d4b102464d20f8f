"""Unchecked credentials: any client can invent one, and only the view can check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse, HttpResponseRedirect
from django.test import Client
from django.urls import clear_url_caches, path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.views import APIView

from django_distlock.idempotency.drf import IdempotentMixin
from tests.idempotency.conftest import Sender, states
from tests.idempotency.test_forms import Browser
from tests.idempotency.views import act, stage

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

GOOD = "good"
SHAPES = pytest.mark.parametrize("shape", ["plain", "atomic", "async", "decorated", "async_decorated"])


def checks_by_hand(request: Any) -> HttpResponse:
    """What a view without a framework does: a wrong token is refused, a wrong order too."""
    if request.headers.get("Authorization") != f"Bearer {GOOD}":
        return HttpResponse("who?", status=401)
    return HttpResponse("wrong", status=402) if b"wrong" in request.body else HttpResponse("right", status=201)


@SHAPES
@pytest.mark.parametrize("status", [400, 404, 405, 415, 422])
def test_refusals_of_a_made_up_token_fill_no_table(site: Stage, shape: str, status: int) -> None:
    """Views refuse a method, a type or a body before they authenticate. Naive code stores each refusal for a day."""
    site.answer = lambda request: HttpResponse("no" * 1000, status=status)
    for number in range(3):
        assert Sender(f"key{number}", who=f"invented{number}").post(shape).status_code == status
    assert states(site.alias) == []


@SHAPES
@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_refused_leaves_nothing(site: Stage, shape: str, status: int) -> None:
    site.answer = lambda request: HttpResponse("who?", status=status)
    assert Sender("key", who="invented").post(shape).status_code == status
    assert states(site.alias) == []


@SHAPES
def test_a_view_that_checks_tokens_by_hand(site: Stage, shape: str) -> None:
    """A success acts once, as before; a refused client may try again, and gets no other client's answer."""
    site.answer = checks_by_hand
    good = Sender("key", who=GOOD)
    assert [Sender("key", who="invented").post(shape).status_code for _ in range(2)] == [401, 401]
    first, second = good.post(shape), good.post(shape)
    assert (first.content, second.content) == (b"right", b"right")
    assert second["Idempotency-Replayed"] == "true"
    assert Sender("key", who="invented").post(shape).status_code == 401


@SHAPES
def test_a_view_can_vouch_for_its_refusal(site: Stage, shape: str) -> None:
    """By the user whom it has found, or by ``keep()``."""
    site.answer = checks_by_hand
    site.during = lambda request: setattr(request, "user", User(pk=7))
    kept = [Sender("by-user", who=GOOD).post(shape, {"wrong": 1}) for _ in range(2)]
    site.during = lambda request: request.idempotency.keep()
    kept += [Sender("by-word", who=GOOD).post(shape, {"wrong": 1}) for _ in range(2)]
    assert [answer.status_code for answer in kept] == [402] * 4
    assert ["Idempotency-Replayed" in answer for answer in kept] == [False, True, False, True]


@SHAPES
def test_credentials_may_count_for_nothing(site: Stage, settings: Any, shape: str) -> None:
    """For a site with public views: only clients that were authenticated before the view have keys in the header."""
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "CREDENTIALS": False}
    for _ in range(2):
        assert Sender("key", who="invented").post(shape).status_code == 201
    assert states(site.alias) == []
    assert Sender("key", who="invented").post("anonymous").status_code == 201
    assert states(site.alias) == ["completed"]


class Tokens(BaseAuthentication):
    """Users by their number; "service" is a credential without a user, "odd" a user without a number."""

    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "")
        if token == "service":
            return AnonymousUser(), token
        if token.startswith("odd"):
            return Odd(), token
        if token.startswith("device"):
            return Device(int(token[-1])), token
        if token.startswith("user"):
            return User(pk=int(token[-1])), token
        if token.startswith("wrong"):
            raise AuthenticationFailed
        return None


class Odd:
    """A user that is in no table."""

    is_authenticated = True


class Device(Odd):
    """A user of another table."""

    def __init__(self, pk: int) -> None:
        self.pk = pk


class Bare(APIView):
    authentication_classes: ClassVar[Any] = (Tokens,)
    permission_classes: ClassVar[Any] = (AllowAny,)

    def post(self, request: Any) -> Any:
        act(request._request)
        return Response({"run": len(stage.runs)}, status=request.data.get("status", 201))


class Mixed(IdempotentMixin, Bare):
    pass


urlpatterns = [path("bare/", Bare.as_view()), path("mixed/", Mixed.as_view())]
FRAMEWORK = pytest.mark.parametrize("shape", ["bare", "mixed"])


@pytest.fixture
def api(site: Stage, settings: Any) -> Stage:
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    return site


def post(shape: str, who: str, status: int = 201, key: str = "key") -> Any:
    headers = {"Idempotency-Key": key, "Authorization": who}
    return Client(raise_request_exception=False).post(
        f"/{shape}/", {"status": status}, content_type="application/json", headers=headers
    )


# Without the mixin nothing shows that a credential without a user was accepted.
@pytest.mark.parametrize(("shape", "who"), [("bare", "user1"), ("mixed", "user1"), ("mixed", "service")])
def test_refusals_of_who_was_authenticated_are_kept(api: Stage, shape: str, who: str) -> None:
    assert [post(shape, who, 422).status_code for _ in range(2)] == [422, 422]
    assert (len(api.runs), states(api.alias)) == (1, ["completed"])


@FRAMEWORK
@pytest.mark.parametrize("who", ["invented", "wrong"])
def test_refusals_of_who_was_not_are_not(api: Stage, shape: str, who: str) -> None:
    assert [post(shape, who, 422).status_code for _ in range(2)] == [403 if who == "wrong" else 422] * 2
    assert states(api.alias) == []


def test_users_of_two_kinds_with_one_number_never_share_an_answer(api: Stage) -> None:
    """Naive code takes device 1 for user 1, and all that have no number for one."""
    people = ["user1", "device1", "user2", "odd1", "odd2"]
    answers = [post("mixed", who) for who in people]
    assert [answer.status_code for answer in answers] == [201] * len(people)
    assert [answer.json()["run"] for answer in answers] == [1, 2, 3, 4, 5]
    again = [post("mixed", who) for who in people]
    assert [answer.json()["run"] for answer in again] == [1, 2, 3, 4, 5]
    assert api.effects == len(people)


def test_a_credential_that_names_a_user_or_a_browser_is_neither(site: Stage) -> None:
    """Naive code hashes what it knows a user by, and what a stranger writes, in the same way."""
    somebody = User.objects.create(username="somebody")
    try:
        client, browser = Client(), Client()
        client.force_login(somebody)
        browser.cookies["csrftoken"] = "s" * 32
        browser.get("/form/")
        known = {"Idempotency-Key": "key"}
        answers = [
            client.post("/anonymous/", {"a": 1}, headers=known),
            browser.post("/anonymous/", {"a": 1}, headers=known),
        ]
        guesses = [f"auth.user:{somebody.pk}", f"user:auth.user:{somebody.pk}", "csrf:" + "s" * 32]
        answers += [Client().post("/anonymous/", {"a": 1}, headers=known | {"Authorization": who}) for who in guesses]
        assert [answer.json()["run"] for answer in answers] == [1, 2, 3, 4, 5]
    finally:
        somebody.delete()


def test_the_way_to_the_log_in_is_a_refusal(site: Stage, settings: Any) -> None:
    """``login_required`` answers 302, which is not what the request was for. Naive code keeps one for each made-up
    token. Of a form, which may end there ("you may log in now"), it is kept."""
    settings.LOGIN_URL = "/accounts/login/"
    site.answer = lambda request: HttpResponseRedirect("/accounts/login/?next=/plain/")
    for number in range(3):
        assert Sender(f"key{number}", who=f"invented{number}").post().status_code == 302
    assert states(site.alias) == []
    settings.LOGIN_URL = "no-such-view"
    site.answer = lambda request: HttpResponseRedirect("/made/1/")
    assert Sender("key", who="a").post().status_code == 302
    assert states(site.alias) == ["completed"]
    settings.LOGIN_URL = "/accounts/login/"
    site.answer = lambda request: HttpResponseRedirect("/accounts/login/")
    browser = Browser()
    fields = browser.open()
    assert [browser.send(fields).has_header("Idempotency-Replayed") for _ in range(2)] == [False, True]
