"""The same request many times at once: in threads at one barrier, and duplicates that come while the first one runs."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import LockNotAcquired
from django_distlock.idempotency.records import KeyClaim
from django_distlock.idempotency.storage import storage_of
from tests.idempotency.conftest import Sender, every_database
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.idempotency.views import Stage

CROWD = 8


def at_once(act: Callable[[], Any], times: int = CROWD) -> list[Any]:
    """What ``act`` gives in each of as many threads, that begin together."""
    barrier = threading.Barrier(times)

    def run() -> Any:
        try:
            barrier.wait(10)
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(times) as pool:
        return [future.result(60) for future in [pool.submit(run) for _ in range(times)]]


@pytest.fixture(params=[False, True], ids=["", "ATOMIC_REQUESTS"])
def in_transactions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", request.param)


def test_naive_code_acts_several_times(site: Stage, key: str) -> None:
    """Read, then act, as other packages do: all requests read before the first one has acted."""
    seen: dict[str, bool] = {}
    barrier = threading.Barrier(CROWD)

    def naive() -> None:
        if key not in seen:
            barrier.wait(10)
            rows.write("default", site.name)
            seen[key] = True

    at_once(naive)
    assert site.effects == CROWD


@every_database
@pytest.mark.usefixtures("in_transactions")
@pytest.mark.parametrize("shape", ["plain", "atomic", "decorated"])
def test_duplicates_at_one_barrier_act_once(site: Stage, key: str, shape: str) -> None:
    answers = at_once(lambda: Sender(key).post(shape))
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) <= {201, 409}
    assert 201 in statuses
    assert all(answer.json() == {"run": 1} for answer in answers if answer.status_code == 201)
    assert site.effects == 1
    assert len(site.runs) == 1


class Running:
    """A first request that has acted and does not answer yet."""

    def __init__(self, site: Stage, key: str, shape: str, data: Any = None) -> None:
        self.acted, self.go_on = threading.Event(), threading.Event()
        self.answer: Any = None

        def pause(request: Any) -> None:
            self.acted.set()
            assert self.go_on.wait(20)

        def run() -> None:
            try:
                self.answer = Sender(key).post(shape, data)
            finally:
                connections.close_all()

        site.during = pause
        self.thread = threading.Thread(target=run)

    def __enter__(self) -> Running:
        self.thread.start()
        assert self.acted.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self.thread.join(20)


servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"])


@servers
@pytest.mark.usefixtures("in_transactions")
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_in_flight_is_answered_at_once(site: Stage, sender: Sender, key: str, shape: str) -> None:
    """Naive code: an INSERT of the same key waits for the first one's commit."""
    with Running(site, key, shape) as running:
        second = sender.post(shape)
        assert (second.status_code, second.json()["code"]) == (409, "in_flight")
        assert second["Retry-After"] == "1"
        assert running.answer is None, "it waited for the first one"
    assert running.answer.status_code == 201
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


@servers
def test_on_conflict_do_nothing_alone_would_wait(site: Stage, key: str) -> None:
    """What the lock in front is for."""
    limit = {"postgres": "SET lock_timeout = '100ms'", "mariadb": "SET innodb_lock_wait_timeout = 1"}[site.alias]
    claim = KeyClaim(scope=scope_of(key), owner="o", fingerprint="f", claim_ttl=1, ttl=1)
    with Running(site, key, "atomic"), connections[site.alias].cursor() as cursor:
        cursor.execute(limit)
        with pytest.raises(LockNotAcquired) as caught:
            storage_of(site.alias).claim(claim)
        assert re.search(r"lock timeout|Lock wait timeout", str(caught.value.__cause__))
    connections[site.alias].close()


def scope_of(key: str) -> str:
    from django_distlock.idempotency import decisions
    from tests.conftest import SITE_KEY

    return decisions.scope_of(SITE_KEY, "testserver", "credential:Bearer a", "POST", "atomic/", key)


@servers
@pytest.mark.parametrize("shape", ["waiting", "atomic_waiting"])
def test_a_duplicate_may_wait_for_the_answer(site: Stage, key: str, shape: str) -> None:
    with Running(site, key, shape) as running, ThreadPoolExecutor(1) as pool:
        looked = threading.Event()

        def second() -> Any:
            looked.set()
            try:
                return Sender(key).post(shape)
            finally:
                connections.close_all()

        future = pool.submit(second)
        assert looked.wait(10)
        running.go_on.set()
        answer = future.result(20)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
    assert site.effects == 1


def test_a_duplicate_waits_no_longer_than_it_was_told(site: Stage, key: str, settings: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "WAIT": 0.1}
    with Running(site, key, "plain"):
        asked = time.monotonic()
        assert Sender(key).post("plain").json()["code"] == "in_flight"
        assert time.monotonic() - asked >= 0.1
    assert site.effects == 1


@pytest.mark.parametrize("shape", ["waiting", "async_waiting"])
def test_a_duplicate_waits_on_sqlite_and_in_a_task(site: Stage, key: str, shape: str) -> None:
    with Running(site, key, shape) as running, ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: (Sender(key).post(shape), connections.close_all())[0])
        running.go_on.set()
        answer = future.result(20)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
    assert site.effects == 1


def test_one_with_other_data_is_a_mismatch_at_once(site: Stage, sender: Sender, key: str) -> None:
    with Running(site, key, "plain"):
        assert sender.post("plain", {"other": 1}).status_code == 422


@servers
def test_a_duplicate_that_looks_very_often(site: Stage, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for minutes. Naive code recurses once for each read, until the stack is full."""
    looks: list[int] = []
    enough = threading.Event()

    def pause(attempt: int) -> float:
        looks.append(attempt)
        if len(looks) == 1200:
            enough.set()
        return 0.0

    monkeypatch.setattr("django_distlock.idempotency.decisions.pause", pause)
    with Running(site, key, "atomic_waiting") as running, ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: (Sender(key).post("atomic_waiting"), connections.close_all())[0])
        enough.wait(4)
        running.go_on.set()
        answer = future.result(20)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
