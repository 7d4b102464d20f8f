"""The recent history of a lock: recorded without a statement in any acquire, bounded, kept for a while, drawn."""

from __future__ import annotations

import os
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from django.core.checks import run_checks
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from django_distlock import LockLost, advisory_lock, signals
from django_distlock.manager.events import send
from django_distlock.models import LockEvent
from django_distlock.operations import history
from django_distlock.operations.history import Event
from django_distlock.operations.recorder import KEPT, ORDINARY, TRIES, Recorder, recorder
from django_distlock.testing import lose
from tests.conftest import eventually
from tests.engines.statements import counted
from tests.operations.listening import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def recorded(databases: None, settings: Any) -> Iterator[None]:
    settings.DISTLOCK_HISTORY_DAYS = 1
    yield
    recorder.flush(10)
    del settings.DISTLOCK_HISTORY_DAYS
    LockEvent.rows.all().delete()


def written(name: str, using: str = "memory") -> list[Event]:
    assert recorder.flush(10)
    return history.recent(using, name)


def test_it_is_off_by_default(databases: None) -> None:
    assert not history.enabled()
    assert not any(signal.receivers for signal in SIGNALS.values())
    with advisory_lock("x", using="memory"):
        pass
    assert "distlock-history" not in {thread.name for thread in threading.enumerate()}


def test_everything_that_happens_is_there_the_newest_first(recorded: None, name: str) -> None:
    assert history.enabled()
    before = datetime.now(UTC)
    with advisory_lock(name, using="memory"):
        threading.Thread(target=lambda: advisory_lock(name, using="memory").try_acquire()).start()
        eventually(lambda: len(recorder._rare) > 0, "no timeout")
    lease = advisory_lock(name, using="memory").acquire()
    lose(lease, reason="session")
    with pytest.raises(LockLost):
        lease.release()
    send(signals.lock_broken, lease._hold.backend, name, reason="by\nann")
    events = written(name)
    assert [event.kind for event in events] == ["broken", "lost", "acquired", "released", "timed_out", "acquired"]
    broken, lost, acquired, released, timed_out, _ = events
    assert (broken.reason, lost.reason) == (r"by\nann", "session")
    assert acquired.fence == lost.fence == lease.fence
    assert acquired.wait is not None
    assert acquired.hold is None
    assert released.hold is not None
    assert timed_out.wait is not None
    assert all(before <= event.at <= datetime.now(UTC) for event in events)
    assert {(event.name, event.using) for event in events} == {(name, "memory")}
    assert events[0].holder.endswith(f":{os.getpid()}")
    assert history.recent("memory", name, limit=2) == events[:2]


def test_names_are_told_apart_as_the_code_spells_them(recorded: None) -> None:
    names = ["Straße", "straße", "strasse", "straße ", "x\r\n\x1b[2J\u202e", "lone \ud800", "nul \0", "🔒" * 512]
    for name in names:
        with advisory_lock(name, using="memory"):
            pass
    for name in names:
        assert len(written(name)) == 2
        assert written(name)[0].name.isprintable()
    assert not history.recent("leasetable", names[0])


def test_an_acquire_pays_no_statement(databases: None, settings: Any, name: str) -> None:
    def pairs() -> dict[str, int]:
        with counted("postgres") as seen:
            for _ in range(3):
                with advisory_lock(name, using="postgres"):
                    pass
        return {text: calls for text, calls in seen.items() if "advisory" in text or "event" in text}

    with advisory_lock(name, using="postgres"):
        pass
    without = pairs()
    settings.DISTLOCK_HISTORY_DAYS = 1
    assert pairs() == without
    assert sum(without.values()) == 6
    assert len(written(name, "postgres")) == 6
    LockEvent.rows.all().delete()


def test_it_is_written_on_a_connection_of_its_own_that_is_closed_again(
    recorded: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    create = LockEvent.rows.bulk_create

    def noted(rows: Any) -> Any:
        made = create(list(rows))
        used.append((threading.current_thread().name, connections["default"], len(made)))
        return made

    monkeypatch.setattr(LockEvent.rows, "bulk_create", noted)
    for _ in range(5):
        with advisory_lock(name, using="memory"):
            pass
    recorder.flush(10)
    ((thread, connection, rows),) = used
    assert (thread, connection.connection, rows) == ("distlock-history", None, 10)
    assert connection is not connections["default"]


def test_a_flood_is_cut_but_for_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[int]] = []
    mine = Recorder(lambda items: batches.append(list(items)), lambda: None)
    for number in range(ORDINARY + 50):
        mine.put(number, rare=False)
    for number in range(KEPT + 7):
        mine.put(-number, rare=True)
    assert mine.dropped == 57
    assert mine.flush(10)
    assert sum(map(len, batches)) == ORDINARY + KEPT
    assert max(map(len, batches)) == 500


def test_a_database_that_fails_is_logged_and_no_lock_is_harmed(
    recorded: None, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(rows: Any) -> None:
        raise DatabaseError("no such\ntable")

    monkeypatch.setattr(LockEvent.rows, "bulk_create", fail)
    with advisory_lock(name, using="memory"):
        pass
    assert recorder.flush(10)
    assert r"2 events of locks could not be recorded: no such\ntable" in caplog.text
    monkeypatch.undo()
    with advisory_lock(name, using="memory"):
        pass
    assert len(written(name)) == 2


def test_a_loss_waits_for_a_database_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is when locks are lost. What is not passing, or lasts, does not keep the next ones from being written."""
    monkeypatch.setattr("django_distlock.operations.recorder.DELAY", 0.005)
    answers: list[Exception | None] = [OperationalError("the server is starting up"), InterfaceError("gone"), None]
    batches: list[list[str]] = []

    def write(items: Sequence[str]) -> None:
        batches.append(list(items))
        error = answers.pop(0) if answers else None
        if error is not None:
            raise error

    mine = Recorder(write, lambda: 1 / 0)
    mine._prune_at = 0.0
    mine._ordinary.append("acquired")  # put() would start the thread, which may write before "lost" is there
    mine.put("lost", rare=True)
    eventually(lambda: mine._thread is None, "it goes on for ever")
    assert batches == [["lost", "acquired"], ["lost"], ["lost"]]
    answers += [DatabaseError("no such column"), *[OperationalError("incorrect string") for _ in range(TRIES)]]
    del batches[:]
    mine.put("lost", rare=True)
    eventually(lambda: mine._thread is None, "it goes on for ever")
    assert batches == [["lost"]]
    mine.put("poison", rare=True)
    eventually(lambda: mine._thread is None, "it goes on for ever")
    assert batches[1:] == [["poison"]] * TRIES


def test_a_slow_database_is_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    mine = Recorder(lambda items: bool(gate.wait(10)) or None, lambda: None)
    mine.put(1, rare=True)
    start = time.monotonic()
    assert not mine.flush(0.1)
    assert time.monotonic() - start < 1
    gate.set()
    assert mine.flush(10)


def test_the_child_of_a_fork_writes_only_its_own(recorded: None, name: str) -> None:
    with advisory_lock(name, using="memory"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads run
        pid = os.fork()
    if pid == 0:
        os._exit(0 if not recorder._ordinary and recorder._thread is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(written(name)) == 2


def test_what_is_old_is_pruned_in_batches(recorded: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with advisory_lock(name, using="memory"):
        pass
    kept = written(name)
    LockEvent.rows.bulk_create(
        LockEvent(alias="a", digest="d", name="n", kind="lost", at=datetime.now(UTC) - timedelta(days=2, minutes=age))
        for age in range(5)
    )
    monkeypatch.setattr(history, "PRUNED_AT_ONCE", 2)
    assert history.prune(3) == 0
    recorder._prune_at = 0.0  # an hour is over
    with advisory_lock("another", using="memory"):
        pass
    recorder.flush(10)
    assert not LockEvent.rows.filter(digest="d").exists()
    assert written(name) == kept
    assert history.prune(0.0) == 4


@pytest.mark.parametrize("days", ["1", 0, -1, True, float("nan")])
def test_wrong_settings_are_found_by_the_check_and_switch_it_off(databases: None, settings: Any, days: Any) -> None:
    settings.DISTLOCK_HISTORY_DAYS = days
    (message,) = (message for message in run_checks(tags=["distlock"]) if message.id == "distlock.E010")
    assert "DISTLOCK_HISTORY_DAYS" in message.msg
    assert not any(signal.receivers for signal in SIGNALS.values())


# --- the plot


def event(kind: str, second: int, **facts: Any) -> Event:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    return Event(name="<script>", using="<b>", kind=kind, at=at, **facts)


def test_the_plot_shows_waits_holds_and_what_went_wrong() -> None:
    events = [
        event("released", 9, hold=2.0),
        event("timed_out", 8, wait=10.0),
        event("acquired", 1, wait=0.0),
        event("broken", 0, reason="<script>"),
    ]
    text = history.plot(events)
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    assert root.tag == SVG + "svg"
    assert root.attrib["role"] == "img"
    assert (root.findtext(SVG + "title") or "").startswith("Waits and holds")
    description = root.findtext(SVG + "desc") or ""
    assert "Waits (rings): 2, the longest 10 s" in description
    assert "Holds (bars): 1, the longest 2 s" in description
    assert "Ended badly (crosses): 1." in description
    assert len(root.findall(SVG + "circle")) == 2
    assert "style" not in text
    assert "script" not in text
    xs = [float(circle.attrib["cx"]) for circle in root.findall(SVG + "circle")]
    assert xs[0] < xs[1] <= 480


def test_nothing_to_draw_is_nothing() -> None:
    assert history.plot([]) == history.plot([event("broken", 0)]) == ""


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_one_event_and_any_time_can_be_drawn(seconds: float) -> None:
    ElementTree.fromstring(history.plot([event("released", 0, hold=seconds)]))  # noqa: S314 - our own
