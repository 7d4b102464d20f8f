"""What operators see of keys: checks, the admin's list, what a key costs, and that old ones are deleted."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_distlock.idempotency import conf
from django_distlock.idempotency.storage.database import DatabaseStorage
from django_distlock.idempotency.upkeep import sweeper
from tests.conftest import eventually
from tests.idempotency import MIDDLEWARE
from tests.idempotency.test_storages import claim_of
from tests.idempotency.world import Running, Sender, Stage, change, serve, sql, states
from tests.support.findings import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "/admin/django_distlock/idempotencyrecord/"


class NotHere:
    """A router that keeps the table out."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if model_name == "idempotencyrecord" else None


WRONG: list[Any] = [
    *(["x"], {"TTL": 0}, {"TTL": "1"}, {"CLAIM_TTL": True}, {"WAIT": -1}, {"MAX_BODY": 0}, {"CREDENTIALS": 1}),
    *({"STORAGE": "file"}, {"ON_CRASH": "panic"}, {"ON_STORE_ERROR": None}, {"LIFETIME": 1}),
]
CASES: list[Any] = [
    ({}, None),
    *(({"MIDDLEWARE": [one for one in MIDDLEWARE if one != below] + [below]}, "E032") for below in MIDDLEWARE[:-1]),
    *(({"DISTLOCK_IDEMPOTENCY": wrong}, "E031") for wrong in WRONG),
    ({"DISTLOCK_IDEMPOTENCY": {"STORAGE": "cache", "CACHE": "nowhere"}}, "E031"),
    ({"DISTLOCK_IDEMPOTENCY": {"STORAGE": "cache", "CACHE": "default"}}, "W031"),
    ({"DISTLOCK_IDEMPOTENCY": {"STORAGE": "cache", "CACHE": "redis", "MAX_KEYS": 3}}, "W064"),  # it cannot count
    ({"DISTLOCK_IDEMPOTENCY": {"DATABASE": "nowhere"}}, "E033"),
    ({"DATABASE_ROUTERS": [NotHere()]}, "E034"),
]


def test_what_the_checks_find(site: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, expected in CASES:
        with override_settings(**changes):
            assert {message.id for message in findings()} == ({f"distlock.{expected}"} if expected else set()), changes
            if changes.get("DISTLOCK_IDEMPOTENCY") in WRONG:
                with pytest.raises(ImproperlyConfigured, match="DISTLOCK_IDEMPOTENCY"):
                    conf.config()
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    assert {message.id for message in findings()} == {"distlock.W032"}, "a transaction that is not covered"


@pytest.fixture
def staff(site: Stage, settings: Any) -> Iterator[Client]:
    """Somebody who may see the list, which this opens; the views are those of the admin."""
    serve(settings, "testproject.urls")
    user = User.objects.create(username="operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
    client = Client()
    client.force_login(user)
    yield client
    LogEntry.objects.filter(user=user).delete()
    user.delete()


def may_release() -> None:
    User.objects.get().user_permissions.add(Permission.objects.get(codename="release_idempotencyrecord"))


def release_all(client: Client) -> str:
    scopes = [scope for (scope,) in sql("default", "SELECT scope FROM {keys}")]
    page: Any = client.post(URL, {"action": "release_keys", "_selected_action": scopes}, follow=True)
    return str(page.content.decode())


def test_the_list_of_the_admin(site: Stage, key: str, staff: Client, settings: Any) -> None:
    """It shows no bodies and changes nothing; and a key that is stuck is released by who may."""
    serve(settings, "tests.idempotency.views")
    Sender(key).post(data={"secret": "canary-body"})
    Sender("other").post("decorated")
    sql("default", "UPDATE {keys} SET state = 'claimed', status = NULL, expires_at = 1 WHERE route = 'plain/'")
    serve(settings, "testproject.urls")
    html = staff.get(URL).content.decode()
    assert "plain/" in html
    assert "credential" in html
    for hidden in (key, "canary", '{"run"', "Release the selected"):
        assert hidden not in html
    stuck, answered = [scope for (scope,) in sql("default", "SELECT scope FROM {keys} ORDER BY state")]
    for path in ("add/", f"{stuck}/delete/"):
        assert staff.get(URL + path).status_code == 403
    assert "/made/1/" not in staff.get(f"{URL}{answered}/change/").content.decode()
    assert staff.get(URL, {"q": "plain"}).status_code == 200
    assert Client().get(URL).status_code == 302
    release_all(staff)
    assert sorted(states("default")) == ["claimed", "completed"]
    may_release()
    assert "1 key was released" in release_all(staff)
    assert states("default") == ["completed"]
    assert LogEntry.objects.count() == 1


def test_the_key_of_a_running_request_is_left_alone(site: Stage, key: str, staff: Client, settings: Any) -> None:
    """An operator selects the whole list while a request runs. If its key were released, a copy would run beside it."""
    may_release()
    serve(settings, "tests.idempotency.views")
    with Running(site, lambda: Sender(key).post()):
        serve(settings, "testproject.urls")
        assert "0 keys were released" in release_all(staff)
        serve(settings, "tests.idempotency.views")
        assert Sender(key).post().json()["code"] == "in_flight"
    assert Sender(key).post()["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    assert not LogEntry.objects.exists(), "the log tells of a release that did not happen"


# -- what a key costs, counted where Django sends statements


NOT_OURS = ("BEGIN", "COMMIT", "ROLLBACK", "distlock_written")


@contextmanager
def asked(alias: str) -> Iterator[list[str]]:
    """The statements that the block has sent for keys."""
    found: list[str] = []
    with CaptureQueriesContext(connections[alias]) as queries:
        yield found
    found += [query["sql"] for query in queries if not any(word in query["sql"] for word in NOT_OURS)]


def test_without_a_key_or_with_a_safe_method_nothing_is_asked(site: Stage, sender: Sender) -> None:
    for shape in ("plain", "atomic", "async", "decorated", "async_decorated", "exempt", "form"):
        Sender().post(shape)
        with asked(site.alias) as found:
            assert Sender().post(shape).status_code == 201
            for method in ("get", "head", "options"):
                getattr(sender.client, method)(f"/{shape}/", headers={"Idempotency-Key": sender.key or ""})
        assert found == [], shape


FIRST = [("default", "plain"), ("default", "atomic"), ("postgres", "atomic"), ("mariadb", "atomic")]


@pytest.mark.parametrize(("alias", "shape"), FIRST)
@pytest.mark.usefixtures("atomic_requests")
def test_a_first_post_and_a_replay(site: Stage, settings: Any, shape: str) -> None:
    """Claim and answer. A limit on the number of keys costs one statement more."""
    Sender("warm").post(shape)
    for more in (0, 1):
        for _ in range(2):
            with asked(site.alias) as found:
                assert Sender(f"first{more}").post(shape).status_code == 201
            assert len(found) <= 2 + more, found
        change(settings, MAX_KEYS=50)


# -- sweeps


@pytest.fixture
def often(site: Stage, settings: Any, nothing_is_swept: None) -> Iterator[None]:
    change(settings, PURGE_EVERY=0.001)
    sweeper.__init__()  # type: ignore[misc]
    yield
    eventually(lambda: math.inf not in sweeper._due.values(), "a sweep does not end")
    sweeper.__init__()  # type: ignore[misc]


def requests_go_by(shape: str, until: Callable[[], bool]) -> None:
    numbers = count()
    eventually(lambda: Sender(f"by-{next(numbers)}").post(shape) and until(), "nothing was swept")


@pytest.mark.parametrize(("alias", "shape"), [("default", "plain"), ("postgres", "atomic"), ("mariadb", "plain")])
def test_old_keys_are_deleted_as_requests_go_by(site: Stage, often: None, shape: str) -> None:
    """The request pays not one statement more, although a sweep is due with each."""
    for number in range(3):
        DatabaseStorage(site.alias).claim(claim_of(f"{number:03d}"))
    sql(site.alias, "UPDATE {keys} SET lives_until = 1, expires_at = 1 WHERE route = 'r'")
    with asked(site.alias) as found:
        assert Sender("by-0").post(shape).status_code == 201
    assert len(found) == 2, found
    requests_go_by(shape, lambda: not sql(site.alias, "SELECT scope FROM {keys} WHERE route = 'r'"))
    assert Sender("by-0").post(shape)["Idempotency-Replayed"] == "true"  # what lives stays


@pytest.mark.parametrize("what", ["never", "in a TestCase", "a cache"])
def test_when_nothing_is_swept(
    site: Stage, often: None, settings: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    swept: list[object] = []
    monkeypatch.setattr(DatabaseStorage, "purge", lambda self, **bounds: swept.append(self) or 0)
    change(settings, **{"never": {"PURGE_EVERY": None}, "a cache": {"STORAGE": "cache"}}.get(what, {}))
    with transaction.atomic("default"):
        if what == "in a TestCase":
            connections["default"].atomic_blocks[-1]._from_testcase = True
        for number in range(5):
            Sender(f"{what}{number}").post()
    assert not [thread for thread in threading.enumerate() if thread.name == "idempotency-sweep"]
    assert swept == []


def test_a_sweep_that_fails_is_told_and_tried_again(
    site: Stage, often: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []
    monkeypatch.setattr(DatabaseStorage, "purge", lambda self, **bounds: tries.append(self) or 1 / 0)
    requests_go_by("plain", lambda: len(tries) > 1)
    assert "Old idempotency keys could not be deleted" in caplog.text
