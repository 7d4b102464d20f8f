"""The same request many times at once: in threads at one barrier, and duplicates that come while the first one runs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from tests.conftest import PATIENCE
from tests.idempotency.world import Running, Sender, Stage, at_once, change, every_database, expire, on_servers


@pytest.fixture(autouse=True)
def in_transaction(monkeypatch: pytest.MonkeyPatch, alias: str, request: pytest.FixtureRequest) -> None:
    """The plain view is as it is, the others under ATOMIC_REQUESTS."""
    shape = getattr(request.node, "callspec", None) and request.node.callspec.params.get("shape")
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", shape in ("atomic", "decorated"))


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic", "decorated"])
def test_duplicates_at_one_barrier_act_once(site: Stage, key: str, shape: str) -> None:
    answers = at_once(lambda: Sender(key).post(shape))
    assert 201 in {answer.status_code for answer in answers} <= {201, 409}
    assert all(answer.json() == {"run": 1} for answer in answers if answer.status_code == 201)
    assert (site.effects, len(site.runs)) == (1, 1)
    expire(site.alias)
    answers = at_once(lambda: Sender(key).post(shape))
    assert 201 in {answer.status_code for answer in answers} <= {201, 409}
    assert site.effects == 2, "an old key is new, and used once"


@on_servers
@pytest.mark.parametrize("shape", ["plain", "atomic", "decorated"])
def test_in_flight_is_answered_at_once(site: Stage, sender: Sender, key: str, shape: str) -> None:
    """Naive code: an INSERT of the same key waits for the first one's commit."""
    with Running(site, lambda: Sender(key).post(shape)) as running:
        second = sender.post(shape)
        assert (second.status_code, second.json()["code"], second["Retry-After"]) == (409, "in_flight", "1")
        assert running.answer is None, "it waited for the first one"
        if shape != "atomic":  # what is in a transaction cannot be compared yet
            assert sender.post(shape, {"other": 1}).status_code == 422
    assert running.answer.status_code == 201
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


WAITING = [
    *(("default", "waiting"), ("default", "async_waiting")),
    *(("postgres", "atomic_waiting"), ("mariadb", "atomic_waiting")),
]


@pytest.mark.parametrize(("alias", "shape"), WAITING)
def test_a_duplicate_may_wait_for_the_answer(
    site: Stage, key: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for minutes. Naive code recurses once for each look at the key, until the stack is full."""
    looks: list[int] = []
    enough = 1200 if shape == "atomic_waiting" else 3

    def pause(attempt: int) -> float:
        looks.append(attempt)
        if len(looks) == enough:
            running.go_on.set()
        return 0.0

    monkeypatch.setattr("django_distlock.idempotency.decisions.pause", pause)
    with Running(site, lambda: Sender(key).post(shape)) as running, ThreadPoolExecutor(1) as pool:
        answer: Any = pool.submit(lambda: (Sender(key).post(shape), connections.close_all())[0]).result(PATIENCE)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
    assert len(looks) >= enough
    assert site.effects == 1


def test_a_duplicate_waits_no_longer_than_it_was_told(site: Stage, key: str, settings: Any) -> None:
    change(settings, WAIT=0.1)
    with Running(site, lambda: Sender(key).post()):
        asked = time.monotonic()
        assert Sender(key).post().json()["code"] == "in_flight"
        assert time.monotonic() - asked >= 0.1
    assert site.effects == 1
