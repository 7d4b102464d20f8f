"""The recent history of a lock: recorded without a statement in any acquire, bounded, and kept for a while."""

from __future__ import annotations

import os
import threading
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.db import DatabaseError, InterfaceError, OperationalError

from django_distlock import LockLost, advisory_lock, break_lock, held_locks
from django_distlock.models import LockEvent
from django_distlock.operations import history
from django_distlock.operations.recorder import BATCH, MOST, TRIES, Recorder, recorder
from django_distlock.testing import lose, race
from tests.conftest import eventually
from tests.engines.statements import counted
from tests.operations.world import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def recorded(databases: None, settings: Any) -> Iterator[None]:
    settings.DISTLOCK_HISTORY_DAYS = 1
    yield
    recorder.flush(25)
    del settings.DISTLOCK_HISTORY_DAYS
    LockEvent.rows.all().delete()


def written(name: str, using: str = "memory") -> list[LockEvent]:
    assert recorder.flush(25)
    return history.recent(using, name)


def hold(name: str, using: str = "memory") -> None:
    with advisory_lock(name, using=using):
        pass


def test_it_is_off_by_default_and_with_wrong_settings(databases: None, settings: Any) -> None:
    for days in (None, "1", 0, -1, True, float("nan")):
        settings.DISTLOCK_HISTORY_DAYS = days
        assert not any(signal.receivers for signal in SIGNALS.values())
        messages = [message.msg for message in run_checks(tags=["distlock"]) if message.id == "distlock.E010"]
        assert ["DISTLOCK_HISTORY_DAYS" in message for message in messages] == [True] * (days is not None)
    hold("x")
    assert "distlock-history" not in {thread.name for thread in threading.enumerate()}


def test_everything_that_happens_is_there_the_newest_first(recorded: None, name: str) -> None:
    before, lock = datetime.now(UTC), advisory_lock(name, using="memory")
    with lock:
        assert race(lock.try_acquire, 1) == [None]
    broken = lock.acquire()
    (info,) = (info for info in held_locks("memory")[0].locks if info.name == name)
    assert break_lock(info, reason="by\nann")
    lease = lock.acquire()
    lose(lease, reason="session")
    for each in (broken, lease):
        with pytest.raises(LockLost):
            each.release()
    events = written(name)
    kinds = [event.kind for event in events]
    assert sorted(kinds) == sorted(["broken", "lost", "lost", "timed_out", "released", *["acquired"] * 3])
    assert (kinds[0], kinds[-1]) == ("lost", "acquired")
    by_kind = {event.kind: event for event in reversed(events)}
    assert (by_kind["broken"].reason, by_kind["lost"].reason) == (r"by\nann", "session")
    assert (by_kind["acquired"].fence, by_kind["lost"].fence) == (lease.fence, lease.fence)
    assert (by_kind["acquired"].hold, by_kind["released"].hold is None) == (None, False)
    assert None not in (by_kind["acquired"].wait, by_kind["timed_out"].wait)
    assert all(before <= event.at <= datetime.now(UTC) for event in events)
    assert {(event.name, event.alias) for event in events} == {(name, "memory")}
    assert events[0].holder.endswith(f":{os.getpid()}")
    assert history.recent("memory", name, limit=2) == events[:2]


def test_an_acquire_pays_no_statement(databases: None, settings: Any, name: str) -> None:
    def pairs() -> dict[str, int]:
        with counted("postgres") as seen:
            for _ in range(3):
                hold(name, "postgres")
        return {text: calls for text, calls in seen.items() if "advisory" in text or "event" in text}

    hold(name, "postgres")
    without = pairs()
    settings.DISTLOCK_HISTORY_DAYS = 1
    assert pairs() == without
    assert (sum(without.values()), len(written(name, "postgres"))) == (6, 6)
    LockEvent.rows.all().delete()


def test_a_loss_waits_for_a_database_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is when locks are lost. What is not passing, or lasts, does not keep the next ones from being written."""
    monkeypatch.setattr("django_distlock.operations.recorder.DELAY", 0.0)
    answers: list[Exception] = []
    batches: list[list[str]] = []

    def write(items: Sequence[str]) -> None:
        batches.append(list(items))
        if answers:
            raise answers.pop(0)

    mine = Recorder(write, lambda: 1 / 0)
    mine._prune_at = 0.0
    for item, errors, tries in (
        ("lost", [OperationalError("the server is starting up"), InterfaceError("gone")], 3),
        ("wrong", [DatabaseError("no such column")], 1),
        ("poison", [OperationalError("incorrect string") for _ in range(TRIES)], TRIES),
    ):
        answers[:], batches[:] = errors, []
        mine.put(item)
        eventually(lambda: mine._thread is None, "it goes on for ever")
        assert batches == [[item]] * tries


def test_the_child_of_a_fork_writes_only_its_own(recorded: None, name: str) -> None:
    hold(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads run
        pid = os.fork()
    if pid == 0:
        # a thread of the parent counts as ended here, and would never write what the child puts
        os._exit(len(recorder._items) + (recorder._thread is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(written(name)) == 2


def test_what_is_old_is_pruned_in_batches(recorded: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(name)
    kept = written(name)
    old = datetime.now(UTC) - timedelta(days=2)
    LockEvent.rows.bulk_create(
        LockEvent(alias="a", digest="d", name="n", kind="lost", at=old - timedelta(minutes=age)) for age in range(5)
    )
    monkeypatch.setattr(history, "PRUNED_AT_ONCE", 2)
    assert history.prune(3) == 0
    recorder._prune_at = 0.0  # an hour is over
    hold("another")
    recorder.flush(25)
    assert not LockEvent.rows.filter(digest="d").exists()
    assert written(name) == kept
    assert history.prune(0.0) == 4


def test_a_flood_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not answer while locks are taken ever so often: the newest events are kept."""
    answers: list[Exception] = [OperationalError("the server is starting up")]
    batches: list[list[int]] = []
    free = threading.Event()

    def write(items: Sequence[int]) -> None:
        assert free.wait(60)
        if answers:
            raise answers.pop()
        batches.append(list(items))

    monkeypatch.setattr("django_distlock.operations.recorder.DELAY", 0.0)
    mine = Recorder(write, lambda: None)
    for number in range(20_000):
        mine.put(number)
    free.set()
    eventually(lambda: mine._thread is None, "it goes on for ever")
    written_down = [item for batch in batches for item in batch]
    # and the batch that was being written
    assert written_down[-MOST:] == list(range(20_000 - MOST, 20_000))
    assert len(written_down) <= MOST + BATCH
    assert max(map(len, batches)) <= BATCH
