"""The machine has no thread to give for a moment, as at a limit of processes: what a thread would do is done later."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import Leader, advisory_lock
from django_distlock.idempotency.records import KeyClaim
from django_distlock.idempotency.upkeep import Renewal
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from django_distlock.operations.recorder import Recorder
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")
TTL = 2.0


@contextmanager
def without(prefix: str) -> Iterator[None]:
    """Threads whose names begin so cannot be started."""
    start = threading.Thread.start

    def maybe(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", maybe)
        yield


@pytest.mark.parametrize("ttl", [None, TTL])
def test_r16_nothing_is_acquired_that_nobody_looks_after(name: str, ttl: float | None) -> None:
    """And the next lease is renewed. ``ttl``: on the short way of an acquire, and on the long one."""
    registry.close()
    eventually(lambda: not keepalive.running, "the thread goes on without work")
    lock = advisory_lock(name, using="redis", **({} if ttl is None else {"ttl": ttl}))
    with without("distlock-keepalive"):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="start new thread"):
                lock.acquire(timeout=5)
    assert not keepalive.running
    with lock, advisory_lock(name + "short", using="redis", ttl=TTL) as lease:
        first = lease._grant.valid_until
        eventually(lambda: lease._grant.valid_until > first, "the lease is not renewed")
        lease.ensure_held()


def test_a_candidate_may_stand_again(name: str) -> None:
    leader = Leader(name, using="memory")
    with without("distlock-leader"):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="start new thread"):
                leader.start()
        leader.stop()
    with leader:
        assert leader.elected(5) is not None


def test_events_are_written_with_the_next_one() -> None:
    written: list[Any] = []
    recorder = Recorder(written.extend, lambda: None)
    with without("distlock-history"):
        recorder.put("first", rare=True)
    recorder.put("second", rare=True)
    assert recorder.flush(10)
    assert written == ["first", "second"]


def test_claims_are_renewed_with_the_next_one() -> None:
    renewed: list[str] = []

    class Store:
        def renew(self, claim: KeyClaim) -> bool:
            renewed.append(claim.owner)
            return True

        def close(self) -> None: ...

    storage = Store()
    claims = [KeyClaim(scope="", owner=each, fingerprint="", claim_ttl=0.05, ttl=1) for each in "ab"]
    attempts: list[Any] = [SimpleNamespace(claim=claim, storage=storage, tenant=None) for claim in claims]
    renewal = Renewal()
    with without("idempotency-renewal"):
        renewal.add(attempts[0])
    renewal.add(attempts[1])
    try:
        eventually(lambda: set(renewed) == {"a", "b"}, "they are not renewed")
    finally:
        for attempt in attempts:
            renewal.remove(attempt)
