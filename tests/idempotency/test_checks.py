"""System checks, settings, and the admin's list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import Client

from django_distlock.idempotency import conf
from tests.idempotency.world import MIDDLEWARE, Running, Sender, serve, sql, states
from tests.support.findings import findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.world import Stage


def ids() -> set[str | None]:
    return {message.id for message in findings()}


class NotHere:
    """A router that keeps the table out."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if model_name == "idempotencyrecord" else None


def test_the_order_of_middleware(site: Stage, settings: Any) -> None:
    assert ids() == set()
    for below in MIDDLEWARE[:-1]:
        settings.MIDDLEWARE = [path for path in MIDDLEWARE if path != below] + [below]
        assert ids() == {"distlock.E032"}


WRONG: list[Any] = [
    *(["x"], {"TTL": 0}, {"TTL": "1"}, {"CLAIM_TTL": True}, {"WAIT": -1}, {"MAX_BODY": 0}, {"CREDENTIALS": 1}),
    *({"STORAGE": "file"}, {"ON_CRASH": "panic"}, {"ON_STORE_ERROR": None}, {"LIFETIME": 1}),
]


def test_wrong_settings(site: Stage, settings: Any) -> None:
    for wrong in WRONG:
        settings.DISTLOCK_IDEMPOTENCY = wrong
        assert ids() == {"distlock.E031"}, wrong
        with pytest.raises(ImproperlyConfigured, match="DISTLOCK_IDEMPOTENCY"):
            conf.config()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"DATABASE": "nowhere"}, "distlock.E033"),
        ({"STORAGE": "cache", "CACHE": "nowhere"}, "distlock.E031"),
        ({"STORAGE": "cache", "CACHE": "default"}, "distlock.W031"),
    ],
)
def test_stores_that_are_none(site: Stage, settings: Any, changes: Any, expected: str) -> None:
    settings.DISTLOCK_IDEMPOTENCY = changes
    assert ids() == {expected}


def test_the_table_must_be_where_the_view_writes(site: Stage, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [NotHere()]
    assert ids() == {"distlock.E034"}


def test_a_transaction_that_is_not_covered(site: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    assert ids() == {"distlock.W032"}


@pytest.fixture
def staff(site: Stage, settings: Any) -> Iterator[User]:
    settings.ROOT_URLCONF = "testproject.urls"
    settings.MIDDLEWARE = MIDDLEWARE
    user = User.objects.create(username="operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
    yield user
    LogEntry.objects.filter(user=user).delete()
    user.delete()


URL = "/admin/django_distlock/idempotencyrecord/"


@pytest.fixture
def stuck(site: Stage, key: str, staff: User, settings: Any) -> list[str]:
    """One key that is stuck, and one that has an answer; the scopes."""
    serve(settings, "tests.idempotency.views")
    Sender(key).post(data={"secret": "canary-body"})
    Sender("other").post("decorated")
    sql("default", "UPDATE {keys} SET state = 'claimed', status = NULL, expires_at = 1 WHERE route = 'plain/'")
    serve(settings, "testproject.urls")
    return [scope for (scope,) in sql("default", "SELECT scope FROM {keys} ORDER BY state")]


def test_the_list_shows_no_bodies_and_changes_nothing(stuck: list[str], staff: User, key: str) -> None:
    client = Client()
    client.force_login(staff)
    html = client.get(URL).content.decode()
    assert "plain/" in html
    assert "credential" in html
    for hidden in (key, "canary", '{"run"', "Release the selected"):
        assert hidden not in html
    for path in ("add/", f"{stuck[0]}/delete/"):
        assert client.get(URL + path).status_code == 403
    assert "/made/1/" not in client.get(f"{URL}{stuck[1]}/change/").content.decode()
    assert client.get(URL, {"q": "plain"}).status_code == 200
    assert Client().get(URL).status_code == 302


def release(client: Client, scopes: list[str]) -> Any:
    return client.post(URL, {"action": "release_keys", "_selected_action": scopes}, follow=True)


def test_a_stuck_key_is_released_by_who_may(stuck: list[str], staff: User) -> None:
    client = Client()
    client.force_login(staff)
    release(client, stuck)
    assert sorted(states("default")) == ["claimed", "completed"]
    staff.user_permissions.add(Permission.objects.get(codename="release_idempotencyrecord"))
    assert "1 key was released" in release(client, stuck).content.decode()
    assert states("default") == ["completed"]
    assert LogEntry.objects.filter(user=staff).count() == 1


def test_the_key_of_a_running_request_is_left_alone(site: Stage, key: str, staff: User, settings: Any) -> None:
    """An operator selects the whole list while a request runs. If its key were released, a copy would run beside it."""
    staff.user_permissions.add(Permission.objects.get(codename="release_idempotencyrecord"))
    client = Client()
    client.force_login(staff)
    serve(settings, "tests.idempotency.views")
    with Running(site, lambda: Sender(key).post()):
        serve(settings, "testproject.urls")
        scopes = [scope for (scope,) in sql("default", "SELECT scope FROM {keys}")]
        assert "0 keys were released" in release(client, scopes).content.decode()
        serve(settings, "tests.idempotency.views")
        assert Sender(key).post().json()["code"] == "in_flight"
    assert Sender(key).post()["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    assert not LogEntry.objects.filter(user=staff).exists(), "the log tells of a release that did not happen"
