"""How many keys of one principal may live, and how those of one user are deleted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_distlock.idempotency import forget_user
from tests.idempotency.conftest import Sender, every_database, states
from tests.idempotency.test_forms import Browser
from tests.idempotency.test_races import at_once
from tests.idempotency.views import redirect
from tests.support.findings import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage

SHAPES = pytest.mark.parametrize("shape", ["plain", "atomic", "async"])


@pytest.fixture
def three(site: Stage, settings: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "MAX_KEYS": 3}


@pytest.fixture(params=[False, True], ids=["", "portable"])
def statements(request: pytest.FixtureRequest, site: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the database, and those for databases that are not known."""
    if request.param:
        monkeypatch.setattr(type(connections[site.alias]), "vendor", "unheard_of")


@every_database
@SHAPES
def test_a_principal_has_a_quota(site: Stage, three: None, statements: None, shape: str) -> None:
    """Naive code keeps 256 KB for each of any number of keys."""
    assert [Sender(f"k{number}").post(shape).status_code for number in range(3)] == [201] * 3
    refused = Sender("k3").post(shape)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_keys")
    assert 86000 < int(refused["Retry-After"]) <= 86400
    assert site.effects == 3
    # what is there is answered, and others have room
    assert Sender("k0").post(shape)["Idempotency-Replayed"] == "true"
    assert Sender("k3", who="b").post(shape).status_code == 201
    with connections[site.alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET lives_until = 1, expires_at = 1 WHERE status = 201")
    assert Sender("k3").post(shape).status_code == 201


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_it_costs_no_statement(site: Stage, three: None, shape: str) -> None:
    Sender("warm", who="b").post(shape)
    with CaptureQueriesContext(connections[site.alias]) as queries:
        assert Sender("first").post(shape).status_code == 201
    found = [query["sql"] for query in queries if "django_distlock_idempotency" in query["sql"]]
    assert len(found) == 2, found


@every_database
def test_copies_at_once_are_not_too_many_keys(site: Stage, three: None) -> None:
    for number in range(2):
        Sender(f"k{number}").post("plain")
    found = {answer.status_code for answer in at_once(lambda: Sender("k2").post("plain"))}
    assert found <= {201, 409}
    assert Sender("k3").post("plain").status_code == 429


@every_database
def test_the_limit_is_passed_by_requests_at_the_same_moment_only(site: Stage, three: None) -> None:
    names = iter([f"k{number}" for number in range(8)])
    guard = threading.Lock()

    def send() -> int:
        with guard:
            name = next(names)
        return Sender(name).post("plain").status_code  # type: ignore[no-any-return]

    at_once(send)
    assert 3 <= len(states(site.alias)) <= 8
    assert Sender("late").post("plain").status_code == 429


def test_people_are_told_on_a_page(site: Stage, three: None) -> None:
    site.answer = redirect
    browser = Browser()
    for _ in range(3):
        assert browser.send(browser.open()).status_code == 302
    refused = browser.send(browser.open())
    assert refused.status_code == 429
    assert "Too many requests" in refused.content.decode()


def test_webhooks_have_none(site: Stage, three: None) -> None:
    """Their ids come from one sender, who may have many."""
    sent = [Sender().post("webhook", headers={"X-Event": str(number)}) for number in range(5)]
    assert {answer.status_code for answer in sent} == {201}


def test_a_cache_cannot_count(site: Stage, settings: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {"STORAGE": "cache", "CACHE": "redis", "MAX_KEYS": 3}
    assert [message.id for message in findings()] == ["distlock.W064"]


@pytest.fixture
def other(site: Stage) -> Iterator[Sender]:
    from django.contrib.auth.models import User

    somebody = User.objects.create(username="somebody-else")
    sender = Sender("theirs")
    sender.client.force_login(somebody)
    yield sender
    somebody.delete()


@every_database
def test_what_is_stored_of_a_user_can_be_deleted(
    site: Stage, user: Sender, other: Sender, statements: None, key: str
) -> None:
    from django.contrib.auth.models import User

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
