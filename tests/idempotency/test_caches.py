"""Keys in each of Django's caches: a late renewal undoes nothing, and a claim that lives is not taken over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.core.management import call_command
from django.db import connection

from django_distlock.idempotency import signals
from tests.conftest import PATIENCE, eventually
from tests.idempotency import late_caches
from tests.idempotency.world import Running, Sender, change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.late_caches import Gate
    from tests.idempotency.world import Stage

TABLE = "distlock_test_cache"
# The others count time, or lock, in another way; their cases are the same.
KINDS = ("LocMem", "DjangoRedis", *(pytest.param(kind, marks=pytest.mark.tier2) for kind in ("WholeSeconds", "Table")))


@pytest.fixture(params=KINDS)
def gate(request: pytest.FixtureRequest, site: Stage, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The keys are in such a cache, claims last for a second, and a request whose claim has expired runs again."""
    places = {"DjangoRedis": settings.CACHES["redis"], "Table": {"LOCATION": TABLE}}
    backend = {"BACKEND": f"tests.idempotency.late_caches.Late{request.param}"}
    settings.CACHES = {"default": {"LOCATION": f"late-{request.param}", **places.get(request.param, {}), **backend}}
    change(settings, STORAGE="cache", CLAIM_TTL=1, ON_CRASH="retry")
    if request.param == "Table":
        call_command("createcachetable", TABLE)
    gate = late_caches.Gate()
    monkeypatch.setattr(late_caches, "gate", gate)
    gate.admit()
    yield gate
    gate.let_through()
    caches["default"].clear()
    if request.param == "Table":
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {TABLE}")


def test_a_late_renewal_undoes_no_answer(site: Stage, sender: Sender, gate: Gate) -> None:
    """A renewal has read what is stored when the request ends; naive code writes it back, and the answer is gone."""
    gate.where = "after"
    site.during = lambda request: gate.reached.wait(PATIENCE)
    assert sender.post().status_code == 201
    assert gate.reached.is_set(), "the claim is not renewed"
    gate.let_through()
    assert sender.post()["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_a_late_renewal_brings_no_freed_key_back(site: Stage, sender: Sender, gate: Gate) -> None:
    """A view that fails frees its key: the request that is sent again runs at once."""
    gate.where = "after"

    def fail(request: Any) -> None:
        assert gate.reached.wait(PATIENCE)
        raise ValueError

    site.during = fail
    assert sender.post().status_code == 500
    gate.let_through()
    site.during = lambda request: None
    assert sender.post().status_code == 201


def test_a_claim_that_is_renewed_late_is_not_taken_over(site: Stage, sender: Sender, key: str, gate: Gate) -> None:
    """A request finds an expired claim, which is renewed before it is taken over: the first request still runs."""
    gate.where = "before"
    found = threading.Event()

    def run() -> Any:
        gate.admit()
        return Sender(key).post()

    def expired(**kwargs: Any) -> None:
        found.set()
        gate.let_through()

    signals.key_expired.connect(expired)
    try:
        with Running(site, run) as first:
            answers: list[Any] = []
            eventually(lambda: answers.append(sender.post()) or found.is_set(), "the claim does not expire", pause=0.05)
            assert {(answer.status_code, answer.json().get("code")) for answer in answers} == {(409, "in_flight")}
    finally:
        signals.key_expired.disconnect(expired)
    assert first.answer.status_code == 201
    assert sender.post()["Idempotency-Replayed"] == "true"
    assert site.effects == 1


def test_a_claim_that_nothing_renews_ends(site: Stage, sender: Sender, gate: Gate) -> None:
    """As if the process had died: the request that is sent again runs, and its answer is the one that is kept."""
    gate.where = "before"
    answers: list[Any] = []

    def again(request: Any) -> None:
        """The same request, sent while the first one is still here."""
        site.during = lambda request: None

        def runs() -> bool:
            answers.append(sender.post())
            return bool(answers[-1].status_code == 201)

        eventually(runs, "the claim does not expire", pause=0.05)

    site.during = again
    assert sender.post().json() == {"run": 2}, "its own answer"
    gate.let_through()
    replay = sender.post()
    assert (replay["Idempotency-Replayed"], replay.json()) == ("true", answers[-1].json())
    assert len(site.runs) == 2
