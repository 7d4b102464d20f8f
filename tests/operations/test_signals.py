"""What is told of locks: signals with their facts, warnings of a long hold, OpenTelemetry's spans and metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    LockLost,
    advisory_lock,
    held_locks,
    lock_all,
    semaphore,
)
from django_distlock.concurrency import clock
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from django_distlock.operations.otel import MOST_LABELS, UNKNOWN, DistlockInstrumentor, prefix_label
from django_distlock.testing import lose
from tests.conftest import PATIENCE, eventually
from tests.operations.world import MEMORY, SIGNALS, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.clock import FakeClock

pytestmark = pytest.mark.usefixtures("databases")
BASIC = {"signal", "sender", "name", "namespace", "using", "template"}
FACTS = {
    "acquired": {"wait", "hold", "fence"},
    "released": {"hold", "fence"},
    "timed_out": {"wait"},
    "failed": {"wait", "error"},
}


def waited_for(name: str) -> bool:
    return any(info.name == name and info.waiters for info in held_locks("memory")[0].locks)


def test_the_wait_is_no_part_of_the_hold(name: str, fake_clock: FakeClock) -> None:
    """Nor is a hold shorter for having been renewed."""
    lock = advisory_lock(name, using="memory", timeout=60)
    with listening(name) as heard, ThreadPoolExecutor(1) as pool:
        first = lock.acquire()
        lock.acquire().release()  # of a re-entry nothing is told
        waiting = pool.submit(lock.acquire)
        eventually(lambda: waited_for(name), "nobody waits")
        fake_clock.advance(5)
        first.extend(30)
        first.release()
        second = waiting.result(PATIENCE)
        fake_clock.advance(2)
        second.release()
    assert sorted(facts["wait"] for kind, facts in heard if kind == "acquired") == [0, 5]
    assert [facts["hold"] for kind, facts in heard if kind == "released"] == [5, 2]
    fences = [first.fence, first.fence, second.fence, second.fence]
    assert sorted(facts["fence"] for _, facts in heard) == fences


def misfortunes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock, a busy lock, a wait that is cancelled, an engine that fails."""
    lock = advisory_lock(name, using="memory")

    def fail(*args: Any) -> None:
        raise BackendUnavailable(f"{name} down")

    async def others() -> None:
        assert await lock.atry_acquire(0.2) is None
        waiter = asyncio.create_task(lock.aacquire(timeout=None))
        await asyncio.to_thread(eventually, lambda: waited_for(name), "nobody waits")
        waiter.cancel()
        await asyncio.wait([waiter])

    with advisory_lock(name, using="memory", shared=True):
        with pytest.raises(DeadlockDetected):
            lock.acquire()
        asyncio.run(others())
    monkeypatch.setattr(registry.entry("memory").backend, "try_acquire", fail)
    for act in (lock.acquire, lambda: asyncio.run(lock.atry_acquire())):
        with pytest.raises(BackendUnavailable):
            act()


def test_what_happens_is_told_of_each_lock_with_its_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a set, and of a semaphore."""
    one, two = names = [f"{name}-{number}" for number in range(2)]
    pool = semaphore(name, 1, using="memory")

    async def both() -> None:
        async with lock_all(names, using="memory"):
            assert await asyncio.create_task(lock_all([two], using="memory").atry_acquire()) is None

    with listening() as heard:
        asyncio.run(both())
        with pool:
            assert pool.try_acquire() is None
        misfortunes(one, monkeypatch)
    assert [(kind, facts["name"]) for kind, facts in heard] == [
        *[("acquired", one), ("acquired", two), ("timed_out", two), ("released", two), ("released", one)],
        *[("acquired", name), ("timed_out", name), ("released", name)],
        *[(kind, one) for kind in ("acquired", "failed", "timed_out", "failed", "released", "failed", "failed")],
    ]
    assert all(set(facts) == BASIC | FACTS[kind] for kind, facts in heard)
    assert {(facts["sender"].__name__, facts["using"]) for _, facts in heard} == {("MemoryBackend", "memory")}
    assert max(facts["wait"] for kind, facts in heard if kind == "timed_out") >= 0.2
    errors = [DeadlockDetected, asyncio.CancelledError, BackendUnavailable, BackendUnavailable]
    assert [type(facts["error"]) for kind, facts in heard if kind == "failed"] == errors


def test_a_receiver_that_fails_is_logged_and_changes_nothing(name: str, caplog: Any) -> None:
    def failing(**facts: Any) -> None:
        raise RuntimeError("receiver")

    for signal in SIGNALS.values():
        signal.connect(failing)
    lock = advisory_lock(name, using="memory")
    with lock as lease:
        assert asyncio.run(lock.atry_acquire()) is None
        assert lease.held
    for signal in SIGNALS.values():
        signal.disconnect(failing)
    assert not lease.held
    assert [(record.levelname, "\n" in record.getMessage()) for record in caplog.records] == [("ERROR", False)] * 3


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, settings: Any) -> Callable[[], str]:
    """What is said of the locks that are held now, as if ten seconds were over."""
    settings.DISTLOCK = {"slow": {**MEMORY, "WARN_HOLD_SECONDS": 10}}

    def look() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "django_distlock.locks"):
            keepalive.tick(clock.now() + 10.1)
        (record,) = caplog.records  # of one: to wait is not to hold
        return record.getMessage()

    return look


def test_the_warning_of_a_slow_hold_says_where_its_thread_is(warned: Callable[[], str], name: str) -> None:
    """On one line, beside another thread that waits."""
    gate, entered = threading.Event(), threading.Event()

    def stuck_in_this_function() -> None:
        entered.set()
        gate.wait(60)

    def hold() -> None:
        with advisory_lock(name, using="slow", timeout=60):
            stuck_in_this_function()

    with ThreadPoolExecutor(2) as pool:
        holds = [pool.submit(hold) for _ in range(2)]
        assert entered.wait(60)
        said = warned()
        gate.set()
    assert [hold.result() for hold in holds] == [None, None]
    assert f"{name!r} of alias 'slow'" in said
    where = r" for 1\d\.\d s\. Its holder is at [^\n]*test_signals\.py:\d+ in stuck_in_this_function < [^\n]* in hold"
    assert re.search(where, said)
    assert "\n" not in said


def test_the_warning_of_a_slow_hold_says_where_its_task_is(warned: Callable[[], str], name: str) -> None:
    """Which awaits code in a thread."""

    async def hold() -> str:
        async with advisory_lock(name, using="slow"):
            return await sync_to_async(warned)()

    assert " in hold" in asyncio.run(hold())


# -- spans and metrics, as the exporters in memory of the OpenTelemetry SDK see them


class Telemetry:
    """An instrumentation with its own exporters."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        DistlockInstrumentor().instrument(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def end(self) -> None:
        DistlockInstrumentor().uninstrument()
        self.tracers.shutdown()
        self.meters.shutdown()

    def spans(self) -> list[ReadableSpan]:
        """Those of locks that have ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == "distlock.acquire"]

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        (scope,) = data.resource_metrics[0].scope_metrics
        assert scope.scope.name == "django_distlock"
        return {metric.name: metric for metric in scope.metrics}

    def points(self, metric: str) -> list[Any]:
        return [point for name, found in self.metrics().items() if name == metric for point in found.data.data_points]


@pytest.fixture
def telemetry(databases: None) -> Iterator[Telemetry]:
    found = Telemetry()
    yield found
    found.end()


def test_a_decorated_lock_has_a_span_and_metrics_by_its_template(telemetry: Telemetry) -> None:
    labels = {"using": "leasetable", "backend": "LeaseTableBackend", "template": "settle-{number}"}
    labels = {f"distlock.{label}": value for label, value in labels.items()}

    @advisory_lock("settle-{number}", using="leasetable")
    def settle(number: int) -> None:
        (held,) = telemetry.points("distlock.held")
        assert (held.value, dict(held.attributes)) == (1, labels)

    settle(7)
    settle(8)
    spans = [dict(span.attributes or {}) for span in telemetry.spans()]
    assert spans == [labels | {"distlock.outcome": "acquired"}] * 2
    for metric in ("distlock.wait", "distlock.hold"):
        (point,) = telemetry.points(metric)
        assert (point.count, dict(point.attributes), point.explicit_bounds[0]) == (2, labels, 0.001)
    assert not telemetry.points("distlock.held") + telemetry.points("distlock.timeouts")


def test_a_span_is_inside_the_span_of_its_caller(telemetry: Telemetry, name: str) -> None:
    """Also in tasks, and in code that they await."""
    tracer = telemetry.tracers.get_tracer("test")

    async def one(number: int) -> Any:
        with tracer.start_as_current_span(f"caller-{number}") as caller:
            async with advisory_lock(f"{name}-async", using="memory"):
                pass
            await sync_to_async(lambda: advisory_lock(f"{name}-sync", using="memory").acquire().release())()
            return caller.get_span_context().span_id

    async def both() -> list[Any]:
        return await asyncio.gather(one(1), one(2))

    callers = asyncio.run(both())
    assert sorted(span.parent.span_id for span in telemetry.spans() if span.parent) == sorted(callers * 2)


def test_outcomes_have_no_message_of_an_error(telemetry: Telemetry, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    misfortunes(name, monkeypatch)
    found = {(span.attributes or {})["distlock.outcome"]: span for span in telemetry.spans()}
    assert list(found) == ["acquired", "deadlock", "timed_out", "cancelled", "failed"]
    assert (found["failed"].attributes or {})["error.type"] == "BackendUnavailable"
    late = found["timed_out"]
    assert (late.end_time or 0) - (late.start_time or 0) >= 0.2e9
    assert (late.status.status_code, found["failed"].status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert name not in "".join(span.to_json() for span in found.values())
    assert [point.value for point in telemetry.points("distlock.timeouts")] == [1]


def test_who_waits_is_counted(telemetry: Telemetry, name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=60)
    with ThreadPoolExecutor(1) as pool, lock:
        waiting = pool.submit(lambda: lock.acquire().release())
        eventually(lambda: [point.value for point in telemetry.points("distlock.waiting")] == [1], "nobody waits")
    assert waiting.result() is None
    assert not telemetry.points("distlock.waiting")


def test_a_loss_is_counted_with_its_reason(telemetry: Telemetry, name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    lose(lease, reason="session")
    with pytest.raises(LockLost):
        lease.release()
    (losses,) = telemetry.points("distlock.losses")
    assert (losses.value, losses.attributes["distlock.reason"]) == (1, "session")
    units = {name: metric.unit for name, metric in telemetry.metrics().items()}
    assert units == {"distlock.wait": "s", "distlock.hold": "s", "distlock.losses": "{loss}"}


def test_names_made_of_data_do_not_become_labels(telemetry: Telemetry) -> None:
    names = ("account:7", "a:b:c", "ann@example.org", ":x")
    assert [prefix_label(name) for name in names] == ["account:*", "a:*", UNKNOWN, UNKNOWN]
    for number in range(MOST_LABELS + 20):
        with advisory_lock(f"kind-{number}:7", using="memory"):
            pass
    found = {point.attributes["distlock.template"] for point in telemetry.points("distlock.wait")}
    assert (len(found), UNKNOWN in found) == (MOST_LABELS + 1, True)


def test_labels_of_the_users_own_and_switched_off(telemetry: Telemetry, name: str) -> None:
    DistlockInstrumentor().uninstrument()
    assert not any(signal.receivers for signal in SIGNALS.values())
    other = Telemetry(label=lambda name: name[:5])
    with advisory_lock(name, using="memory"):
        pass
    (point,) = other.points("distlock.wait")
    other.end()
    assert (point.attributes["distlock.template"], telemetry.spans()) == (name[:5], [])
