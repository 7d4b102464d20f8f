"""Refusals: another user's key, no CSRF token, unknown clients, invented keys, keys that are too long; and what is
stored of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import views as auth
from django.contrib.auth.models import User
from django.test import Client
from django.urls import resolve
from django.views import View

from django_distlock.idempotency import decisions, forget_user
from django_distlock.idempotency.options import is_exempt
from django_distlock.manager.site_key import site_key
from tests.idempotency.world import Browser, Sender, change, every_database, sql, states
from tests.support.findings import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.world import Stage

BAD = ["", " ", "a b", '"a b"', "é", "a,b", '"a","b"', '"a', 'a"b', "\x00", "x" * 256, '"' + "x" * 256 + '"']


@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_another_ones_key_is_another_key(site: Stage, key: str, shape: str) -> None:
    """Naive code, keyed by the header alone, gives B the answer to A."""
    answers = [Sender(key, who=who).post(shape) for who in ("a", "b")]
    assert [answer.json()["run"] for answer in answers] == [1, 2]
    assert not any(answer.has_header("Idempotency-Replayed") for answer in answers)


def test_another_ones_form_key_is_refused(site: Stage, browser: Browser) -> None:
    other = Browser()
    fields, their = browser.open(), other.open()
    browser.send(fields)
    stolen = other.send(their | {"_idempotency_key": fields["_idempotency_key"]})
    assert stolen.status_code == 409
    assert site.effects == 1
    assert "Location" not in stolen


def test_invented_form_keys_are_refused_and_store_nothing(site: Stage, browser: Browser) -> None:
    fields = browser.open()
    values: list[Any] = ["x", "a.b.c", "." * 1025, "é.x.y", "a" * 22 + "." + "b" * 43 + "." + "c" * 43]
    for value in [*values, [fields["_idempotency_key"], browser.open()["_idempotency_key"]]]:
        assert browser.send(fields | {"_idempotency_key": value}).status_code == 400, value
    assert (site.effects, states(site.alias)) == (0, [])


@pytest.mark.parametrize("shape", ["form", "atomic_form"])
def test_without_a_csrf_token_nothing_is_answered(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape)
    browser.send(fields, shape)
    del fields["csrfmiddlewaretoken"]
    response = browser.send(fields, shape)
    assert response.status_code == 403
    assert "Idempotency-Replayed" not in response


def test_header_keys_of_nobody_are_ignored_unless_they_are_allowed(site: Stage, key: str) -> None:
    client = Client()
    for _ in range(2):
        client.post("/plain/", headers={"Idempotency-Key": key})
    assert (site.effects, states(site.alias)) == (2, [])
    for _ in range(2):
        assert client.post("/anonymous/", headers={"Idempotency-Key": key}).status_code == 201
    assert site.effects == 3


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_bad_keys(site: Stage, shape: str) -> None:
    for value in BAD:
        response = Sender().post(shape, key=value)
        assert (response.status_code, response.json()["code"]) == (400, "bad_key"), value
    assert site.effects == 0


def test_good_keys(site: Stage, key: str) -> None:
    good = ["a", "~" * 255, '"\\"quoted\\""', '"14593813892047"', key]
    for value in good:
        assert [Sender().post(key=value).status_code for _ in range(2)] == [201, 201]
    assert site.effects == len(good)
    assert Sender().post(key=f'"{key}"')["Idempotency-Replayed"] == "true", "bare and quoted are one key"


def test_neither_key_nor_credential_is_stored(site: Stage, key: str) -> None:
    Sender(key, who="canary-credential").post(data={"password": "canary-password"})
    text = repr(sql(site.alias, "SELECT * FROM {keys}"))
    assert key not in text
    assert "canary" not in text


def test_no_credential_can_be_tried_on_a_dump(site: Stage, key: str) -> None:
    """Naive code keys the hash in the list by the site key, which is in the same database: passwords are tried fast."""
    labels = []
    for word in ("a", "b", "a"):
        Sender(f"{key}{len(labels)}", who=word).post()
        labels.append(sql(site.alias, "SELECT principal FROM {keys}")[0][0])
        sql(site.alias, "DELETE FROM {keys}")  # two of one millisecond have no order
    assert labels[0] == labels[2] != labels[1], "who looks can tell them apart"
    assert decisions.keyed(site_key.load(), "mark", "testserver", "credential:Bearer a")[:12] not in labels[0]


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
    for name in ("login", "logout", "password_change"):
        assert is_exempt(resolve(f"/admin/{name}/", "testproject.urls").func, "POST")
    assert not is_exempt(resolve("/admin/auth/user/add/", "testproject.urls").func, "POST")


@pytest.mark.parametrize("shape", ["hidden", "hidden_plain"])
def test_options_that_the_middleware_cannot_see(site: Stage, sender: Sender, shape: str, caplog: Any) -> None:
    """Middleware and decorator would both handle the request, each in its own way: an error names the cure."""
    assert sender.post(shape).status_code == 500
    assert "Put @idempotent on top" in caplog.text
    assert site.effects == 0


# -- how many keys of one principal may live, and how those of one user are deleted


@pytest.fixture
def three(site: Stage, settings: Any) -> None:
    change(settings, MAX_KEYS=3)


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_principal_has_a_quota(site: Stage, three: None, shape: str) -> None:
    """Naive code keeps 256 KB for each of any number of keys."""
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


def test_people_are_told_on_a_page_and_webhooks_have_no_quota(site: Stage, three: None, browser: Browser) -> None:
    """The ids of webhooks come from one sender, who may have many."""
    for _ in range(3):
        assert browser.send(browser.open()).status_code == 302
    refused = browser.send(browser.open())
    assert refused.status_code == 429
    assert "Too many requests" in refused.content.decode()
    sent = [Sender().post("webhook", headers={"X-Event": str(number)}) for number in range(5)]
    assert {answer.status_code for answer in sent} == {302}


def test_a_cache_cannot_count(site: Stage, settings: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {"STORAGE": "cache", "CACHE": "redis", "MAX_KEYS": 3}
    assert [message.id for message in findings()] == ["distlock.W064"]


@pytest.fixture
def other(site: Stage) -> Iterator[Sender]:
    somebody = User.objects.create(username="somebody-else")
    sender = Sender("theirs")
    sender.client.force_login(somebody)
    yield sender
    somebody.delete()


@every_database
def test_what_is_stored_of_a_user_can_be_deleted(site: Stage, user: Sender, other: Sender, key: str) -> None:
    me = User.objects.get(username=f"user-{key[:8]}")
    for name in ("a", "b"):
        assert user.post(key=name).status_code == 201
    other.post()
    running: list[int] = []
    site.during = lambda request: running.append(forget_user(me))
    user.post(key="c")
    assert running == [2]  # its own key, which is being used, stays
    assert forget_user(me) == 1
    assert other.post()["Idempotency-Replayed"] == "true"
