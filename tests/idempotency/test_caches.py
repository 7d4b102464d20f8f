"""Keys in each of Django's caches: a late renewal undoes nothing, and a claim that lives is not taken over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django_redis.cache import RedisCache

from django_distlock.idempotency import signals
from tests.conftest import PATIENCE, eventually
from tests.idempotency.world import Running, Sender, Stage, change, fails

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.tier2  # claims of a second are renewed by the clock
METHODS = ("get", "get_many", "set", "set_many", "add", "touch", "delete", "delete_many", "incr")
KINDS = ("LocMem", "Redis", "WholeSeconds")


class Gate:
    """Where operations of other threads than those of requests wait: "before" or "after" they are carried out."""

    def __init__(self) -> None:
        self.where = ""
        self.reached, self.open = threading.Event(), threading.Event()
        self.requests: set[threading.Thread] = set()
        self.others: set[threading.Thread] = set()

    def admit(self) -> None:
        """The calling thread is that of a request."""
        self.requests.add(threading.current_thread())

    def let_through(self) -> None:
        """Open the gate, and wait until the rounds that it has held up are over."""
        self.open.set()
        for thread in list(self.others):
            thread.join(5)

    def passed(self, where: str) -> None:
        thread = threading.current_thread()
        if where == self.where and thread not in self.requests and not self.open.is_set():
            self.others.add(thread)
            self.reached.set()
            self.open.wait(60)


class WholeSeconds(LocMemCache):
    """As Memcached: fractions of a second are cut off, and less than one is in the past."""

    def get_backend_timeout(self, timeout: Any = 300) -> Any:
        return super().get_backend_timeout(timeout if timeout is None else int(timeout) or -1)


def held_up(base: type[Any]) -> type[Any]:
    """A subclass whose methods pass the gate of the running test."""

    def through_the_gate(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            kind.gate.passed("before")
            found = getattr(super(kind, self), name)(*args, **kwargs)
            kind.gate.passed("after")
            return found

        return method

    kind: Any = type(f"Late{base.__name__}", (base,), {name: through_the_gate(name) for name in METHODS})
    return kind  # type: ignore[no-any-return]


LateLocMem, LateWholeSeconds = held_up(LocMemCache), held_up(WholeSeconds)
LateRedis = held_up(RedisCache)


@pytest.fixture(params=KINDS)
def gate(request: pytest.FixtureRequest, site: Stage, settings: Any) -> Iterator[Gate]:
    """The keys are in such a cache, claims last for a second, and a request whose claim has expired runs again."""
    backend = {"BACKEND": f"{__name__}.Late{request.param}"}
    settings.CACHES = {
        "default": {
            "LOCATION": f"late-{request.param}",
            **(settings.CACHES["redis"] if request.param == "Redis" else {}),
            **backend,
        }
    }
    change(settings, STORAGE="cache", CLAIM_TTL=1, ON_CRASH="retry")
    gate = globals()[f"Late{request.param}"].gate = Gate()
    gate.admit()
    yield gate
    gate.let_through()
    caches["default"].clear()


@pytest.mark.parametrize("breaks", [False, True])
def test_a_late_renewal_undoes_no_answer_and_brings_no_freed_key_back(
    site: Stage, sender: Sender, gate: Gate, breaks: bool
) -> None:
    """A renewal has read what is stored when the request ends; naive code writes it back."""
    gate.where = "after"

    def during(request: Any) -> None:
        assert gate.reached.wait(PATIENCE), "the claim is not renewed"
        if breaks:
            fails(ValueError)()

    site.during = during
    assert sender.post().status_code == (500 if breaks else 201)
    gate.let_through()
    site.during = lambda request: None
    assert sender.post().get("Idempotency-Replayed") == (None if breaks else "true")
    assert site.effects == (2 if breaks else 1)


def test_a_claim_that_is_renewed_late_is_not_taken_over(site: Stage, sender: Sender, key: str, gate: Gate) -> None:
    """A request finds an expired claim, which is renewed before it is taken over: the first request still runs."""
    gate.where = "before"
    found = threading.Event()
    answers: list[Any] = []

    def run() -> Any:
        gate.admit()
        return Sender(key).post()

    def expired(**kwargs: Any) -> None:
        found.set()
        gate.let_through()

    signals.key_expired.connect(expired)
    try:
        with Running(site, run) as first:
            eventually(lambda: answers.append(sender.post()) or found.is_set(), "the claim does not expire", pause=0.05)
            assert {(answer.status_code, answer.json().get("code")) for answer in answers} == {(409, "in_flight")}
    finally:
        signals.key_expired.disconnect(expired)
    assert first.answer.status_code == 201
    assert sender.post()["Idempotency-Replayed"] == "true"
    assert site.effects == 1
