"""While a request runs: the same one many times at once, and claims that are renewed though a server is silent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.idempotency.storage import storage_of
from tests.conftest import PATIENCE, eventually
from tests.faults.conftest import database_alias
from tests.faults.proxy import Proxy
from tests.idempotency.world import (
    Running,
    Sender,
    Stage,
    at_once,
    change,
    every_database,
    expire,
    on_servers,
    sql,
    states,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def in_transaction(monkeypatch: pytest.MonkeyPatch, alias: str, shape: str) -> None:
    """The plain view is as it is, the others under ATOMIC_REQUESTS."""
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", shape != "plain")


@pytest.mark.usefixtures("in_transaction")
@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic", "decorated"])
def test_duplicates_at_one_barrier_act_once(site: Stage, key: str, shape: str) -> None:
    answers = at_once(lambda: Sender(key).post(shape))
    assert 201 in {answer.status_code for answer in answers} <= {201, 409}
    assert all(answer.json() == {"run": 1} for answer in answers if answer.status_code == 201)
    assert (site.effects, len(site.runs)) == (1, 1)
    expire(site.alias)
    answers = at_once(lambda: Sender(key).post(shape, {"other": "data"}))
    assert 201 in {answer.status_code for answer in answers} <= {201, 409}
    assert site.effects == 2, "an old key is new, and used once"


@pytest.mark.usefixtures("in_transaction")
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
def test_a_duplicate_may_wait_for_an_answer(site: Stage, key: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- renewal of claims


LEASE = 2.4  # renewed each third of it; a busy machine may be late by one


def rounds() -> list[threading.Thread]:
    """The threads that have asked a server to renew something, and have no answer yet."""
    return [thread for thread in threading.enumerate() if thread.name == "idempotency-renewal-round"]


@pytest.fixture
def proxy(site: Stage, alias: str, settings: Any) -> Iterator[Proxy]:
    """Between this process and the keys; what views write goes past it."""
    server = connections.settings[alias]
    with (
        Proxy(server["HOST"], int(server["PORT"])) as proxy,
        database_alias(f"{alias}_proxied", alias, PORT=str(proxy.port)) as proxied,
    ):
        settings.DISTLOCK_IDEMPOTENCY = {"DATABASE": proxied, "CLAIM_TTL": LEASE}
        yield proxy
        proxy.heal()
        proxy.cut()
        eventually(lambda: not rounds(), "a round of renewals is left")


class Watched:
    """How long the only claim of a database lives, or the only other one, and whether it ever ran out."""

    def __init__(self, alias: str, but: str = "") -> None:
        self.alias, self.ran_out = alias, False
        ((self.scope,),) = sql(alias, "SELECT scope FROM {keys} WHERE scope <> %s", but)

    def until(self) -> int:
        found = storage_of(self.alias).read(self.scope)
        assert found is not None
        self.ran_out |= found.expired
        return int(sql(self.alias, "SELECT expires_at FROM {keys} WHERE scope = %s", self.scope)[0][0])

    def is_renewed(self, times: int = 1) -> None:
        for _ in range(times):
            before = self.until()
            eventually(lambda before=before: self.until() > before, "it is not renewed")


@pytest.mark.tier2
@pytest.mark.parametrize("alias", ["postgres"])
def test_a_reply_that_never_comes_costs_one_round_and_no_claim(site: Stage, key: str, alias: str, proxy: Proxy) -> None:
    """The server is well, and one connection is dead: each message of a renewal in turn has no answer."""
    with Running(site, lambda: Sender(key).post()):
        watched = Watched(alias)
        for nth in range(1, 8):
            proxy.swallow(nth)
            watched.is_renewed()
        stuck = len(rounds())
        proxy.heal()
        assert not watched.ran_out
        assert Sender(key).post().json()["code"] == "in_flight"
    assert stuck >= 3, "there is no fault to guard against"


@pytest.mark.tier2
@on_servers
@pytest.mark.usefixtures("atomic_requests")
def test_a_phase_in_the_transaction_of_the_request_ties_up_nobody(site: Stage, key: str, alias: str) -> None:
    """It locks the row of the claim to the end of the request; the renewals of other claims go on."""
    acted, go_on = threading.Event(), threading.Event()

    def during(request: Any) -> None:
        with request.idempotency.phase("charge"):
            pass
        acted.set()
        assert go_on.wait(PATIENCE)

    first = threading.Thread(target=lambda: (Sender(key).post("brief"), connections.close_all()))
    site.during = during
    first.start()
    try:
        assert acted.wait(PATIENCE)
        watched = Watched(alias)
        eventually(lambda: watched.until() and watched.ran_out, "the claim does not run out")
        with Running(site, lambda: Sender("two").post("brief")):
            Watched(alias, watched.scope).is_renewed(5)
            begun = set(rounds())
            # one may have been on its way when the phase was saved
            eventually(lambda: len(begun & set(rounds())) <= 1, "they wait")
    finally:
        go_on.set()
        first.join(PATIENCE)
    assert states(alias) == ["completed"] * 2
