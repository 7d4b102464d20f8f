"""Whose key it is: unchecked credentials, which any client can invent and only the view can check; and tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, HttpResponseRedirect
from django.test import Client
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.views import APIView

from django_distlock.idempotency import idempotent
from django_distlock.idempotency.conf import config
from django_distlock.idempotency.drf import IdempotentMixin
from tests.idempotency.views import SHAPES, act, copy_of, stage
from tests.idempotency.world import Browser, Sender, change, serve, states

if TYPE_CHECKING:
    from tests.idempotency.world import Stage

GOOD = "good"
FACES = pytest.mark.parametrize("shape", ["plain", "atomic", "async_decorated"])


def checks_by_hand(request: Any) -> HttpResponse:
    """What a view without a framework does: a wrong token is refused, a wrong order too."""
    if request.headers.get("Authorization") != f"Bearer {GOOD}":
        return HttpResponse("who?", status=401)
    return HttpResponse("wrong", status=402) if b"wrong" in request.body else HttpResponse("right", status=201)


@FACES
def test_refusals_of_a_made_up_token_fill_no_table(site: Stage, shape: str) -> None:
    """Views refuse a method, a type or a body before they authenticate. Naive code stores each refusal for a day."""
    for status in (400, 401, 403, 404, 405, 415, 422):
        site.answer = lambda request, status=status: HttpResponse("no" * 1000, status=status)
        for number in range(2):
            assert Sender(f"key{number}", who=f"invented{number}").post(shape).status_code == status
    assert states(site.alias) == []


@FACES
def test_a_view_that_checks_tokens_by_hand(site: Stage, shape: str) -> None:
    """A success acts once, as before; a refused client may try again, and gets no other client's answer. The view can
    vouch for its refusal, by the user whom it has found, or by ``keep()``."""
    site.answer = checks_by_hand
    good, invented = Sender("key", who=f"Bearer {GOOD}"), Sender("key", who="invented")
    assert [invented.post(shape).status_code for _ in range(2)] == [401, 401]
    first, second = good.post(shape), good.post(shape)
    assert (first.content, second.content) == (b"right", b"right")
    assert second["Idempotency-Replayed"] == "true"
    assert invented.post(shape).status_code == 401
    site.during = lambda request: setattr(request, "user", User(pk=7))
    kept = [Sender("by-user", who=f"Bearer {GOOD}").post(shape, {"wrong": 1}) for _ in range(2)]
    site.during = lambda request: request.idempotency.keep()
    kept += [Sender("by-word", who=f"Bearer {GOOD}").post(shape, {"wrong": 1}) for _ in range(2)]
    assert [answer.status_code for answer in kept] == [402] * 4
    assert ["Idempotency-Replayed" in answer for answer in kept] == [False, True, False, True]


def test_credentials_may_count_for_nothing(site: Stage, settings: Any) -> None:
    """For a site with public views: only clients that were authenticated before the view have keys in the header."""
    change(settings, CREDENTIALS=False)
    for shape in ("plain", "atomic", "async"):
        assert Sender("key", who="invented").post(shape).status_code == 201
    assert states(site.alias) == []
    assert Sender("key", who="invented").post("anonymous").status_code == 201
    assert states(site.alias) == ["completed"]


def test_a_refusal_of_somebody_unknown_is_not_kept(site: Stage) -> None:
    """Else a forged webhook uses up the number of the real one."""

    def send(body: str) -> Any:
        return Client().post("/webhook/", body, content_type="text/plain", headers={"X-Event": "1"})

    site.answer = lambda request: HttpResponse("bad signature", status=400)
    assert send("forged").status_code == 400
    site.answer = lambda request: HttpResponse("ok")
    assert send("real").content == b"ok"
    assert send("real")["Idempotency-Replayed"] == "true"


def test_the_way_to_the_log_in_is_a_refusal(site: Stage, settings: Any) -> None:
    """``login_required`` answers 302, which is not what the request was for. Naive code keeps one for each made-up
    token. Of a form, which may end there ("you may log in now"), it is kept."""
    settings.LOGIN_URL = "/accounts/login/"
    site.answer = lambda request: HttpResponseRedirect("/accounts/login/?next=/plain/")
    assert Sender("key", who="invented").post().status_code == 302
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


# -- the REST framework's users


class Odd:
    """A user that is in no table."""

    is_authenticated = True


class Device(Odd):
    """A user of another table."""

    def __init__(self, pk: int) -> None:
        self.pk = pk


class Tokens(BaseAuthentication):
    """Users by their number; "service" is a credential without a user, "odd" a user without a number."""

    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "")
        if token.startswith("wrong"):
            raise AuthenticationFailed
        found = {
            "service": lambda: AnonymousUser(),
            "odd": lambda: Odd(),
            "device": lambda: Device(int(token[-1])),
            "user": lambda: User(pk=int(token[-1])),
        }.get(token.rstrip("12"))
        return None if found is None else (found(), token)


class Bare(APIView):
    authentication_classes: ClassVar[Any] = (Tokens,)
    permission_classes: ClassVar[Any] = (AllowAny,)

    def post(self, request: Any) -> Any:
        act(request._request)
        return Response({"run": len(stage.runs)}, status=request.data.get("status", 201))


class Mixed(IdempotentMixin, Bare):
    pass


def schema(request: Any) -> str:
    """What django-tenants and its like write on each request."""
    return str(request.headers.get("X-Schema", "public"))


urlpatterns = [
    path("bare/", Bare.as_view()),
    path("mixed/", Mixed.as_view()),
    *(path(f"{shape}/", SHAPES[shape]) for shape in ("plain", "atomic", "async", "form")),
    path("by_schema/", idempotent(scope=schema)(copy_of(act))),
    path("wrong/", idempotent(scope=lambda request: 7)(copy_of(act))),  # type: ignore[arg-type,return-value]
]


@pytest.fixture
def here(site: Stage, settings: Any) -> Stage:
    serve(settings, __name__)
    settings.ALLOWED_HOSTS = [".example", "testserver"]
    return site


def post(shape: str, who: str, status: int = 201) -> Any:
    headers = {"Idempotency-Key": "key", "Authorization": who}
    client = Client(raise_request_exception=False)
    return client.post(f"/{shape}/", {"status": status}, content_type="application/json", headers=headers)


# Without the mixin nothing shows that a credential without a user was accepted.
@pytest.mark.parametrize(("shape", "who"), [("bare", "user1"), ("mixed", "user1"), ("mixed", "service")])
def test_refusals_of_who_was_authenticated_are_kept(here: Stage, shape: str, who: str) -> None:
    assert [post(shape, who, 422).status_code for _ in range(2)] == [422, 422]
    assert (len(here.runs), states(here.alias)) == (1, ["completed"])


@pytest.mark.parametrize("shape", ["bare", "mixed"])
def test_refusals_of_who_was_not_are_not(here: Stage, shape: str) -> None:
    assert [post(shape, "invented", 422).status_code for _ in range(2)] == [422, 422]
    assert [post(shape, "wrong", 422).status_code for _ in range(2)] == [403, 403]
    assert states(here.alias) == []


def test_users_of_two_kinds_with_one_number_never_share_an_answer(here: Stage) -> None:
    """Naive code takes device 1 for user 1, and all that have no number for one."""
    people = ["user1", "device1", "user2", "odd1", "odd2"]
    for _ in range(2):
        assert [post("mixed", who).json()["run"] for who in people] == [1, 2, 3, 4, 5]
    assert here.effects == len(people)


def test_a_credential_that_names_a_user_or_a_browser_is_neither(site: Stage) -> None:
    """Naive code hashes what it knows a user by, and what a stranger writes, in the same way."""
    somebody = User.objects.create(username="somebody")
    try:
        client, browser = Client(), Client()
        client.force_login(somebody)
        browser.cookies["csrftoken"] = "s" * 32
        browser.get("/form/")
        known = {"Idempotency-Key": "key"}
        answers = [one.post("/anonymous/", {"a": 1}, headers=known) for one in (client, browser)]
        guesses = [f"auth.user:{somebody.pk}", f"user:auth.user:{somebody.pk}", "csrf:" + "s" * 32]
        answers += [Client().post("/anonymous/", {"a": 1}, headers=known | {"Authorization": who}) for who in guesses]
        assert [answer.json()["run"] for answer in answers] == [1, 2, 3, 4, 5]
    finally:
        somebody.delete()


# -- one project, several hosts: the key of one is not the key of another


def runs(sender: Sender, shape: str, hosts: list[str], **headers: str) -> list[int]:
    return [sender.post(shape, headers={"Host": host, **headers}).json()["run"] for host in hosts]


@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_the_answer_of_one_host_is_not_given_at_another(here: Stage, sender: Sender, shape: str) -> None:
    """Naive code gives tenant A's answer on tenant B, and B's order is not made."""
    hosts = ["a.example", "b.example", "a.example", "b.example:8000", "A.EXAMPLE"]
    assert runs(sender, shape, hosts) == [1, 2, 1, 3, 1]
    assert sender.post(shape, headers={"Host": "evil.test"}).status_code == 400


def test_a_form_key_of_one_host_acts_at_the_other_too(here: Stage, browser: Browser) -> None:
    fields = browser.open()
    for host in ("a.example", "b.example"):
        for _ in range(2):
            assert browser.send(fields, headers={"Host": host}).status_code == 302
    assert here.effects == 2


def test_a_view_names_its_tenant(here: Stage, sender: Sender, settings: Any, caplog: Any) -> None:
    """In place of the host: several hosts of one tenant, or several tenants at one host; or all views do."""
    assert runs(sender, "by_schema", ["a.example", "b.example"], **{"X-Schema": "one"}) == [1, 1]
    assert runs(sender, "by_schema", ["a.example"], **{"X-Schema": "two"}) == [2]
    for number, given in ((3, schema), (4, f"{__name__}.schema")):
        change(settings, SCOPE=given)
        sender.key = f"key{number}"
        assert runs(sender, "plain", ["a.example", "b.example"]) == [number, number]
    assert sender.post("wrong", headers={"Host": "a.example"}).status_code == 500
    assert "scope must return a str" in caplog.text
    for wrong in ("no.such.function", 7):
        settings.DISTLOCK_IDEMPOTENCY = {"SCOPE": wrong}
        with pytest.raises(ImproperlyConfigured, match="SCOPE"):
            config()
