"""What has outlived its lifetime is deleted as requests go by."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_distlock.idempotency import upkeep
from django_distlock.idempotency.storage.database import DatabaseStorage
from django_distlock.idempotency.upkeep import sweeper
from tests.conftest import eventually
from tests.idempotency.conftest import Sender, every_database
from tests.idempotency.test_statements import ours
from tests.idempotency.test_storages import claim_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage


@pytest.fixture(autouse=True)
def often(site: Stage, settings: Any, nothing_is_swept: None) -> Iterator[None]:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "PURGE_EVERY": 0.001}
    sweeper.__init__()  # type: ignore[misc]
    yield
    eventually(lambda: not sweeper._busy, "a sweep does not end")
    sweeper.__init__()  # type: ignore[misc]


def rows_in(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM django_distlock_idempotency")
        return int(cursor.fetchone()[0])


def ended(alias: str, number: int) -> None:
    """Keys whose lifetime is over."""
    for each in range(number):
        DatabaseStorage(alias).claim(claim_of(f"{each:03d}", ttl=0.001, claim_ttl=0.001))


def still_there(alias: str) -> list[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT scope FROM django_distlock_idempotency WHERE route = 'r'")
        return [scope for (scope,) in cursor.fetchall()]


def until_swept(alias: str, shape: str) -> None:
    """Requests go by until the old keys are gone."""
    numbers = iter(range(1000))
    eventually(lambda: Sender(f"by-{next(numbers)}").post(shape) and not still_there(alias), "they are still there")


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_old_keys_are_deleted_as_requests_go_by(site: Stage, shape: str) -> None:
    """Naive code leaves that to a command: after 30 further requests the row was there with its body."""
    ended(site.alias, 3)
    until_swept(site.alias, shape)
    assert Sender("by-0").post(shape)["Idempotency-Replayed"] == "true"  # what lives stays


def test_a_sweep_is_bounded_and_the_next_goes_on(site: Stage, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(upkeep, "BATCH", 2)
    monkeypatch.setattr(upkeep, "BATCHES", 2)
    ended(site.alias, 10)
    found: list[int] = []
    purge = DatabaseStorage.purge

    def counting(self: DatabaseStorage, **bounds: Any) -> int:
        found.append(purge(self, **bounds))
        return found[-1]

    monkeypatch.setattr(DatabaseStorage, "purge", counting)
    until_swept(site.alias, "plain")
    eventually(lambda: len(found) > 2, "the last sweep does not end")  # others see its work before it returns
    assert found[:3] == [4, 4, 2]


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_the_request_pays_nothing(site: Stage, shape: str) -> None:
    """Not one statement more on its connection, although a sweep is due with each."""
    Sender("warm").post(shape)
    ended(site.alias, 3)
    with CaptureQueriesContext(connections[site.alias]) as queries:
        assert Sender("first").post(shape).status_code == 201
    assert len(ours(queries)) == 2


def test_one_sweep_per_interval(site: Stage, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[object] = []
    monkeypatch.setattr(DatabaseStorage, "purge", lambda self, **bounds: swept.append(self) or 0)
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "PURGE_EVERY": 3600}
    Sender("a").post()
    sweeper._due = dict.fromkeys(sweeper._due, 0.0)
    for number in range(5):
        Sender(f"b{number}").post()
    eventually(lambda: not sweeper._busy, "the sweep does not end")
    assert len(swept) == 1


@pytest.mark.parametrize("what", ["never", "in a TestCase", "a cache"])
def test_where_nothing_is_swept(site: Stage, settings: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    swept: list[object] = []
    monkeypatch.setattr(DatabaseStorage, "purge", lambda self, **bounds: swept.append(self) or 0)
    changes = {"never": {"PURGE_EVERY": None}, "a cache": {"STORAGE": "cache"}}.get(what, {})
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, **changes}
    with transaction.atomic("default") as _:
        if what == "in a TestCase":
            connections["default"].atomic_blocks[-1]._from_testcase = True
        for number in range(5):
            Sender(f"{what}{number}").post()
    assert not [thread for thread in threading.enumerate() if thread.name == "idempotency-sweep"]
    assert swept == []


def test_a_sweep_that_fails_is_told_and_tried_again(
    site: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def failing(self: DatabaseStorage, **bounds: Any) -> int:
        tries.append(self)
        raise OSError("no")

    monkeypatch.setattr(DatabaseStorage, "purge", failing)
    numbers = iter(range(1000))
    eventually(lambda: Sender(f"{next(numbers)}").post() and len(tries) > 1, "it was not tried again")
    assert "Old idempotency keys could not be deleted" in caplog.text
