"""What keys cost, counted where Django sends statements and by the servers themselves; and what has outlived its
lifetime is deleted as requests go by."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_distlock.idempotency.storage.database import DatabaseStorage
from django_distlock.idempotency.upkeep import sweeper
from tests.conftest import eventually
from tests.idempotency.test_storages import claim_of
from tests.idempotency.world import Sender, Stage, change, sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOT_OURS = ("BEGIN", "COMMIT", "ROLLBACK", "distlock_written")


@contextmanager
def asked(alias: str) -> Iterator[list[str]]:
    """The statements that the block has sent for keys."""
    found: list[str] = []
    with CaptureQueriesContext(connections[alias]) as queries:
        yield found
    found += [query["sql"] for query in queries if not any(word in query["sql"] for word in NOT_OURS)]


def test_without_a_key_nothing_is_asked(site: Stage) -> None:
    for shape in ("plain", "atomic", "async", "decorated", "exempt", "form"):
        Sender().post(shape)
        with asked(site.alias) as found:
            assert Sender().post(shape).status_code == 201
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
    """Naive code leaves that to a command. The request pays nothing: not one statement more on its connection, although
    a sweep is due with each."""
    for number in range(3):
        DatabaseStorage(site.alias).claim(claim_of(f"{number:03d}"))
    sql(site.alias, "UPDATE {keys} SET lives_until = 1, expires_at = 1 WHERE route = 'r'")
    with asked(site.alias) as found:
        assert Sender("by-0").post(shape).status_code == 201
    assert len(found) == 2, found
    requests_go_by(shape, lambda: not sql(site.alias, "SELECT scope FROM {keys} WHERE route = 'r'"))
    assert Sender("by-0").post(shape)["Idempotency-Replayed"] == "true"  # what lives stays


@pytest.mark.parametrize("what", ["never", "in a TestCase", "a cache"])
def test_where_nothing_is_swept(
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
