"""What an operator sees: held_locks(), signals, and the log."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockNotAcquired, advisory_lock, held_locks
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.keepalive import keepalive
from django_distlock.signals import lock_acquired, lock_lost, lock_released, lock_timed_out
from tests.conformance.watching import waiting_at_the_engine
from tests.conftest import eventually
from tests.matrix import MATRIX
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import LockInfo
    from tests.conformance.actors import Actor
    from tests.matrix import Entry

SIGNALS = {"acquired": lock_acquired, "released": lock_released, "timed_out": lock_timed_out, "lost": lock_lost}


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every signal with its facts, in order."""
    told: list[tuple[str, dict[str, Any]]] = []
    receivers = {}
    for kind, signal in SIGNALS.items():

        def receive(kind: str = kind, **facts: Any) -> None:
            told.append((kind, facts))

        receivers[kind] = receive
        signal.connect(receive)
    yield told
    for kind, signal in SIGNALS.items():
        signal.disconnect(receivers[kind])


def _listed(using: str, name: str) -> list[LockInfo]:
    (report,) = held_locks(using)
    assert (report.alias, report.error) == (using, None)
    return [info for info in report.locks if info.name == name]


def test_a_lock_of_this_process_is_listed_while_it_is_held(me: Actor, using: str, name: str, backend: Any) -> None:
    lock = advisory_lock(name, using=using)
    lease = me.acquire(lock)
    (info,) = _listed(using, name)
    assert (info.backend, info.name, info.shared) == (using, name, False)
    assert info.key
    assert info.holder
    if backend.supports_fencing:
        assert info.fence == lease.fence
    if backend.supports_ttl:
        assert info.expires_at is not None
        assert timedelta(seconds=20) < info.expires_at - datetime.now(UTC) < timedelta(seconds=31)
        assert info.acquired_at is not None
        assert abs(info.acquired_at - datetime.now(UTC)) < timedelta(seconds=5)
    me.release(lease)
    assert _listed(using, name) == []


def test_a_lock_of_another_process_is_listed_with_its_waiters(
    me: Actor, rival: Any, using: str, name: str, entry: Entry, backend: Any
) -> None:
    held = rival.acquire(using, name)
    assert me.try_acquire(advisory_lock(name, using=using)) is None
    (info,) = _listed(using, name)
    assert info.holder
    if entry.processes:
        assert not info.waiters
        waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=20)
        seen: list[LockInfo] = []
        eventually(lambda: seen.extend(_listed(using, name)) or seen[-1].waiters == 1, "no waiter is listed")
        who = "".join(seen[-1].waiting)
        # MySQL names only the account and its connection
        assert f":{os.getpid()}" in who or (backend.alias == "mysql" and "@" in who)
        rival.release(held)
        lease = waiting.result(20)
        eventually(lambda: waiting_at_the_engine(using, name) == 0, "a waiter that has gone is listed")
        me.release(lease)
    else:
        rival.release(held)


def test_a_shared_lock_is_listed_as_shared(me: Actor, using: str, name: str, backend: Any) -> None:
    if not backend.supports_shared:
        return
    lease = me.acquire(advisory_lock(name, using=using, shared=True))
    (info,) = _listed(using, name)
    assert info.shared
    me.release(lease)


def test_all_aliases_at_once(using: str, name: str, settings: Any) -> None:
    with advisory_lock(name, using=using):
        reports = held_locks()
    assert {report.alias for report in reports} == set(settings.DISTLOCK)
    assert {entry.using for entry in MATRIX} < set(settings.DISTLOCK)
    assert name in [info.name for report in reports if report.alias == using for info in report.locks]


def test_a_dead_backend_is_data(using: str, backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Only the class of the error; its text, with an address perhaps, goes to the log."""

    def inspect(*_query: Any) -> Any:
        raise BackendUnavailable("no route to db.example:5432") from ConnectionRefusedError("db.example")

    monkeypatch.setattr(backend, "inspect", inspect)
    monkeypatch.setattr(backend, "select", inspect)  # of those that choose by themselves
    with caplog.at_level(logging.WARNING, "django_distlock"):
        (report,) = held_locks(using)
    assert (report.locks, report.error) == ((), "ConnectionRefusedError")
    assert "db.example" not in repr(report)
    assert "db.example" in caplog.text


def test_signals_of_a_life(me: Actor, using: str, name: str, backend: Any, heard: list[Any]) -> None:
    lock = advisory_lock(name, using=using)
    lease = me.acquire(lock)
    me.release(me.acquire(lock))
    me.release(lease)
    assert [kind for kind, _ in heard] == ["acquired", "released"]
    for _, facts in heard:
        assert (facts["sender"], facts["name"], facts["using"]) == (type(backend), name, using)
        assert facts["fence"] == (lease.fence if backend.supports_fencing else None)
    assert 0 <= heard[0][1]["wait"] < 5
    assert 0 <= heard[1][1]["hold"] < 5


def test_the_signal_of_a_wait(me: Actor, other: Actor, using: str, name: str, heard: list[Any]) -> None:
    lock = advisory_lock(name, using=using)
    lease = me.acquire(lock)
    heard.clear()
    with pytest.raises(LockNotAcquired):
        other.acquire(lock, timeout=0.1)
    ((kind, facts),) = heard
    assert (kind, facts["name"], facts["using"]) == ("timed_out", name, using)
    within(facts["wait"], 0.2, least=0.1)
    me.release(lease)


def test_a_receiver_that_fails_changes_nothing(me: Actor, using: str, name: str, caplog: Any) -> None:
    def fail(**facts: Any) -> None:
        raise ZeroDivisionError("receiver")

    for signal in SIGNALS.values():
        signal.connect(fail)
    try:
        lease = me.acquire(advisory_lock(name, using=using))
        assert lease.held
        me.release(lease)
        assert not lease.held
    finally:
        for signal in SIGNALS.values():
            signal.disconnect(fail)
    assert "receiver" in caplog.text


def test_a_long_hold_is_warned_of_once(me: Actor, using: str, name: str, settings: Any, caplog: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "WARN_HOLD_SECONDS": 0.05}}
    with caplog.at_level(logging.WARNING, "django_distlock"):
        lease = me.acquire(advisory_lock(name, using=using))
        for _ in range(2):
            keepalive._tick(monotonic() + 0.06)
        me.release(lease)
    assert caplog.text.count("has been held for") == 1
    assert name in caplog.text
