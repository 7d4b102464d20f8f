"""Whose key it is: of another user, of nobody, invented, of another tenant; and what is stored of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import views as auth
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, HttpResponseRedirect
from django.test import Client
from django.urls import path, resolve
from django.views import View
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.idempotency import decisions, forget_user
from django_distlock.idempotency.conf import config
from django_distlock.idempotency.options import is_exempt
from django_distlock.manager.site_key import site_key
from tests.idempotency import views
from tests.idempotency.views import own
from tests.idempotency.world import Browser, Sender, Stage, change, sql, states

if TYPE_CHECKING:
    from collections.abc import Iterator

FACES = pytest.mark.parametrize("shape", ["plain", "atomic", "async_decorated"])
BAD = ["", " ", "a b", '"a b"', "é", "a,b", '"a","b"', '"a', 'a"b', "\x00", "x" * 256, '"' + "x" * 256 + '"']


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_bad_and_good_keys(site: Stage, shape: str) -> None:
    for value in BAD:
        response = Sender().post(shape, key=value)
        assert (response.status_code, response.json()["code"]) == (400, "bad_key"), value
    assert site.effects == 0
    good = ["a", "~" * 255, '"\\"quoted\\""', '"14593813892047"']
    for value in good:
        assert [Sender().post(shape, key=value).status_code for _ in range(2)] == [201, 201]
    assert Sender().post(shape, key="14593813892047")["Idempotency-Replayed"] == "true", "bare and quoted are one key"
    assert site.effects == len(good)


def test_form_keys_of_others_and_invented_ones_are_refused(site: Stage, browser: Browser) -> None:
    fields, other = browser.open(), Browser()
    for value in ("x", "a.b", "." * 1025, "é.x.y", "a" * 22 + "." + "b" * 43):
        assert browser.send(fields | {"_idempotency_key": value}).status_code == 409, value
    both = [fields["_idempotency_key"], browser.open()["_idempotency_key"]]
    assert browser.send(fields | {"_idempotency_key": both}).status_code == 400
    assert (site.effects, states(site.alias)) == (0, [])
    browser.send(fields)
    stolen = other.send(other.open() | {"_idempotency_key": fields["_idempotency_key"]})
    assert (stolen.status_code, "Location" in stolen, site.effects) == (409, False, 1)


@given(*[st.lists(st.text(), min_size=5, max_size=5)] * 2)
def test_scopes_meet_only_if_everything_is_the_same(first: list[str], second: list[str]) -> None:
    a, b = (decisions.scope_of("site", *parts) for parts in (first, second))
    assert (a == b) == (first == second)
    assert decisions.scope_of("other site", *first) != a
    assert decisions.keyed("k", "p", "a", "bc") != decisions.keyed("k", "p", "ab", "c"), "parts run together"


def test_header_keys_of_nobody_are_ignored_unless_they_are_allowed(site: Stage, key: str) -> None:
    sent = [Client().post("/plain/", headers={"Idempotency-Key": key}).status_code for _ in range(2)]
    assert (sent, site.effects, states(site.alias)) == ([201, 201], 2, [])
    for _ in range(2):
        assert Client().post("/anonymous/", headers={"Idempotency-Key": key}).status_code == 201
    assert site.effects == 3


def test_views_that_are_left_alone(site: Stage, sender: Sender) -> None:
    """The answer of a log-in view is for one person at one moment; also of one that a project derives."""
    for shape in ("exempt", "login"):
        for _ in range(2):
            sender.post(shape)
    assert (site.effects, states(site.alias)) == (4, [])
    for name in ("Login", "Logout", "PasswordChange", "PasswordReset", "PasswordResetConfirm"):
        view = getattr(auth, f"{name}View")
        assert is_exempt(view.as_view(), "POST")
        assert is_exempt(type("Derived", (view,), {}).as_view(), "POST")
    assert not is_exempt(View.as_view(), "POST")
    found = {name: resolve(f"/admin/{name}/", "testproject.urls").func for name in ("login", "logout", "auth/user/add")}
    assert [is_exempt(view, "POST") for view in found.values()] == [True, True, False]


# -- credentials that nothing has checked, which any client can invent


def checks_by_hand(request: Any) -> HttpResponse:
    """What a view without a framework does: a wrong token is refused, a wrong order too."""
    if request.headers.get("Authorization") != "good":
        return HttpResponse("who?", status=401)
    return HttpResponse("wrong", status=402) if b"wrong" in request.body else HttpResponse("right", status=201)


@FACES
def test_a_view_that_checks_tokens_by_hand(site: Stage, shape: str) -> None:
    """The view can vouch for its refusal, by the user whom it has found, or by ``keep()``."""
    site.answer = checks_by_hand
    good, invented = Sender("key", who="good"), Sender("key", who="invented")
    assert [invented.post(shape).status_code for _ in range(2)] == [401, 401]
    first, second = good.post(shape), good.post(shape)
    assert (first.content, second.content) == (b"right", b"right")
    assert second["Idempotency-Replayed"] == "true"
    assert invented.post(shape).status_code == 401
    assert [good.post(shape, {"wrong": 1}, key=f"any{number % 2}").status_code for number in range(4)] == [402] * 4
    assert states(site.alias) == ["completed"], "a view may refuse a body before it has authenticated anybody"
    site.during = lambda request: setattr(request, "user", User(pk=7))
    kept = [good.post(shape, {"wrong": 1}, key="by-user") for _ in range(2)]
    site.during = lambda request: request.idempotency.keep()
    kept += [good.post(shape, {"wrong": 1}, key="by-word") for _ in range(2)]
    assert [answer.status_code for answer in kept] == [402] * 4
    assert ["Idempotency-Replayed" in answer for answer in kept] == [False, True, False, True]


def test_credentials_may_count_for_nothing(site: Stage, settings: Any) -> None:
    """For a site with public views: only clients that were authenticated before the view have keys in the header."""
    change(settings, CREDENTIALS=False)
    for shape in ("plain", "atomic", "async"):
        assert Sender("key").post(shape).status_code == 201
    assert states(site.alias) == []
    assert Sender("key").post("anonymous").status_code == 201
    assert states(site.alias) == ["completed"]


def test_a_forged_webhook_does_not_use_up_the_number_of_the_real_one(site: Stage) -> None:
    def send(body: str) -> Any:
        return Client().post("/webhook/", body, content_type="text/plain", headers={"X-Event": "1"})

    site.answer = lambda request: HttpResponse("bad signature", status=400)
    assert send("forged").status_code == 400
    site.answer = lambda request: HttpResponse("ok")
    assert [send("real").get("Idempotency-Replayed") for _ in range(2)] == [None, "true"]


def test_the_way_to_the_log_in_is_a_refusal(site: Stage, settings: Any) -> None:
    """``login_required`` answers 302. Of a form, which may end there, it is kept."""
    settings.LOGIN_URL = "/accounts/login/"
    site.answer = lambda request: HttpResponseRedirect("/accounts/login/?next=/plain/")
    assert Sender("key").post().status_code == 302
    assert states(site.alias) == []
    browser = Browser()
    fields = browser.open()
    assert [browser.send(fields).has_header("Idempotency-Replayed") for _ in range(2)] == [False, True]
    site.answer = lambda request: HttpResponseRedirect("/made/1/")
    for number, settings.LOGIN_URL in enumerate(("no-such-view", None)):
        assert Sender(f"key{number}").post().status_code == 302
    assert states(site.alias) == ["completed"] * 3


def test_a_credential_that_names_a_user_or_a_browser_is_neither(site: Stage, user: Sender) -> None:
    """Naive code hashes what it knows a user by, and what a stranger writes, in the same way."""
    somebody, client, browser = User.objects.get(), Client(), Client()
    client.force_login(somebody)
    browser.cookies["csrftoken"] = "s" * 32
    browser.get("/form/")
    known = {"Idempotency-Key": "key"}
    answers = [one.post("/anonymous/", {"a": 1}, headers=known) for one in (client, browser)]
    guesses = [f"auth.user:{somebody.pk}", f"user:auth.user:{somebody.pk}", "csrf:" + "s" * 32]
    answers += [Client().post("/anonymous/", {"a": 1}, headers=known | {"Authorization": who}) for who in guesses]
    assert [answer.json()["run"] for answer in answers] == [1, 2, 3, 4, 5]


# -- one project, several hosts: the key of one is not the key of another


def schema(request: Any) -> str:
    """What django-tenants and its like write on each request."""
    return str(request.headers.get("X-Schema", "public"))


urlpatterns = [
    *views.urlpatterns,
    path("by_schema/", own(scope=schema)),
    path("wrong/", own(scope=lambda request: 7)),
]


@pytest.fixture
def hosts(site: Stage, settings: Any) -> Stage:
    settings.ALLOWED_HOSTS = [".example", "testserver"]
    return site


def runs(sender: Sender, shape: str, hosts: list[str], **headers: str) -> list[int]:
    return [sender.post(shape, headers={"Host": host, **headers}).json()["run"] for host in hosts]


@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_the_answer_of_one_host_is_not_given_at_another(hosts: Stage, sender: Sender, shape: str) -> None:
    """Naive code gives tenant A's answer on tenant B, and B's order is not made."""
    names = ["a.example", "b.example", "a.example", "b.example:8000", "A.EXAMPLE"]
    assert runs(sender, shape, names) == [1, 2, 1, 3, 1]
    assert sender.post(shape, headers={"Host": "evil.test"}).status_code == 400


def test_a_form_key_of_one_host_acts_at_the_other_too(hosts: Stage, browser: Browser) -> None:
    fields = browser.open()
    sent = [browser.send(fields, headers={"Host": host}) for host in ("a.example", "b.example") for _ in range(2)]
    assert [answer.status_code for answer in sent] == [302] * 4
    assert hosts.effects == 2


def test_a_view_names_its_tenant(hosts: Stage, sender: Sender, settings: Any, caplog: Any) -> None:
    """In place of the host: several hosts of one tenant, or several tenants at one host; or all views do."""
    assert runs(sender, "by_schema", ["a.example", "b.example"], **{"X-Schema": "one"}) == [1, 1]
    assert runs(sender, "by_schema", ["a.example"], **{"X-Schema": "two"}) == [2]
    for number, scope in ((3, schema), (4, f"{__name__}.schema")):
        change(settings, SCOPE=scope)
        sender.key = f"key{number}"
        assert runs(sender, "plain", ["a.example", "b.example"]) == [number, number]
    assert sender.post("wrong", headers={"Host": "a.example"}).status_code == 500
    assert "scope must return a str" in caplog.text
    for wrong in ("no.such.function", 7):
        settings.DISTLOCK_IDEMPOTENCY = {"SCOPE": wrong}
        with pytest.raises(ImproperlyConfigured, match="SCOPE"):
            config()


# -- what is stored of a client, and how much


def test_no_credential_can_be_tried_on_a_dump(site: Stage, key: str) -> None:
    """Naive code keys the hash in the list by the site key, which is in the same database: passwords are tried fast."""
    labels = []
    for number, word in enumerate(("canary-a", "b", "canary-a")):
        Sender(f"{key}{number}", who=word).post(data={"password": "canary"})
        text = repr(sql(site.alias, "SELECT * FROM {keys}"))
        assert "canary" not in text
        assert key not in text
        labels.append(sql(site.alias, "SELECT principal FROM {keys}")[0][0])
        sql(site.alias, "DELETE FROM {keys}")  # two of one millisecond have no order
    assert labels[0] == labels[2] != labels[1], "who looks can tell them apart"
    assert decisions.keyed(site_key.load(), "mark", "testserver", "credential:canary-a")[:12] not in labels[0]


@pytest.mark.parametrize(("alias", "shape"), [("default", "plain"), ("postgres", "atomic"), ("mariadb", "atomic")])
def test_a_principal_has_a_quota(site: Stage, settings: Any, shape: str) -> None:
    """Naive code keeps 256 KB for each of any number of keys."""
    change(settings, MAX_KEYS=3)
    assert [Sender(f"k{number}").post(shape).status_code for number in range(3)] == [201] * 3
    refused = Sender("k3").post(shape)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_keys")
    assert 86000 < int(refused["Retry-After"]) <= 86400
    assert site.effects == 3
    # what is there is answered, and others have room
    assert Sender("k0").post(shape)["Idempotency-Replayed"] == "true"
    assert Sender("k3", who="b").post(shape).status_code == 201
    sql(site.alias, "UPDATE {keys} SET lives_until = 1, expires_at = 1 WHERE status = 201")
    assert Sender("k3").post(shape).status_code == 201


def test_people_are_told_on_a_page_and_webhooks_have_no_quota(site: Stage, settings: Any, browser: Browser) -> None:
    """The ids of webhooks come from one sender, who may have many."""
    change(settings, MAX_KEYS=3)
    sent = [browser.send(browser.open()) for _ in range(4)]
    assert [answer.status_code for answer in sent] == [302, 302, 302, 429]
    assert "Too many requests" in sent[-1].content.decode()
    sent = [Sender().post("webhook", headers={"X-Event": str(number)}) for number in range(5)]
    assert {answer.status_code for answer in sent} == {302}


@pytest.fixture
def other(site: Stage) -> Iterator[Sender]:
    somebody = User.objects.create(username="somebody-else")
    sender = Sender("theirs")
    sender.client.force_login(somebody)
    yield sender
    somebody.delete()


def test_what_is_stored_of_a_user_can_be_deleted(site: Stage, user: Sender, other: Sender, key: str) -> None:
    me = User.objects.get(username=f"user-{key[:8]}")
    for name in ("a", "b"):
        assert user.post(key=name).status_code == 201
    other.post()
    running: list[int] = []
    site.during = lambda request: running.append(forget_user(me))
    user.post(key="c")
    assert running == [2]  # its own key, which is being used, stays
    assert forget_user(Group(pk=me.pk)) == 0, "of another class with the same key"
    assert forget_user(me) == 1
    assert other.post()["Idempotency-Replayed"] == "true"
