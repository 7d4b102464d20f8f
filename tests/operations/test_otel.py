"""Spans and metrics, as the OpenTelemetry SDK's exporters in memory see them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_distlock import BackendUnavailable, DeadlockDetected, LockLost, LockTimeout, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.operations.otel import MOST_LABELS, UNKNOWN, DistlockInstrumentor, prefix_label
from django_distlock.testing import lose
from tests.conftest import eventually
from tests.operations.listening import SIGNALS
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Telemetry:
    tracer: Any
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self) -> list[ReadableSpan]:
        """Those of locks that have ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == "distlock.acquire"]

    def outcomes(self) -> list[Any]:
        return [(span.attributes or {})["distlock.outcome"] for span in self.spans()]

    def points(self, metric: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        (scope,) = data.resource_metrics[0].scope_metrics
        assert scope.scope.name == "django_distlock"
        return [point for found in scope.metrics if found.name == metric for point in found.data.data_points]

    def units(self) -> dict[str, str]:
        data: Any = self.reader.get_metrics_data()
        return {metric.name: metric.unit for metric in data.resource_metrics[0].scope_metrics[0].metrics}


@pytest.fixture
def telemetry(databases: None) -> Iterator[Telemetry]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = DistlockInstrumentor()
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)
    yield Telemetry(tracers.get_tracer("test"), exporter, reader)
    instrumentor.uninstrument()
    tracers.shutdown()
    meters.shutdown()


def test_a_decorated_lock_has_a_span_and_metrics_by_its_template(telemetry: Telemetry) -> None:
    labels = {
        "distlock.using": "leasetable",
        "distlock.backend": "LeaseTableBackend",
        "distlock.template": "settle-{number}",
    }

    @advisory_lock("settle-{number}", using="leasetable")
    def settle(number: int) -> None:
        (held,) = telemetry.points("distlock.held")
        assert (held.value, dict(held.attributes)) == (1, labels)

    settle(7)
    settle(8)
    assert [dict(span.attributes or {}) for span in telemetry.spans()] == [
        labels | {"distlock.outcome": "acquired"}
    ] * 2
    for metric in ("distlock.wait", "distlock.hold"):
        (point,) = telemetry.points(metric)
        assert (point.count, dict(point.attributes)) == (2, labels)
        assert point.explicit_bounds[0] == 0.001
    assert not telemetry.points("distlock.held")
    assert not telemetry.points("distlock.timeouts")


def test_the_span_is_as_long_as_the_wait_and_inside_the_span_of_its_caller(telemetry: Telemetry, name: str) -> None:
    """Also in tasks, and in code that they await."""

    async def one(number: int) -> Any:
        with telemetry.tracer.start_as_current_span(f"caller-{number}") as caller:
            async with advisory_lock(f"{name}-async", using="memory"):
                pass
            await sync_to_async(lambda: advisory_lock(f"{name}-sync", using="memory").acquire().release())()
            return caller.get_span_context().span_id

    async def both() -> list[Any]:
        return await asyncio.gather(one(1), one(2))

    async def late() -> Any:
        with telemetry.tracer.start_as_current_span("caller") as caller, pytest.raises(LockTimeout):
            await advisory_lock(name, using="memory", timeout=0.2).aacquire()
        return caller.get_span_context().span_id

    callers = asyncio.run(both())
    parents = [span.parent.span_id for span in telemetry.spans() if span.parent]
    assert sorted(parents) == sorted(caller for caller in callers for _ in range(2))
    with advisory_lock(name, using="memory"):
        caller = asyncio.run(late())
    span = telemetry.spans()[-1]
    assert telemetry.outcomes()[-1] == "timed_out"
    assert (span.end_time or 0) - (span.start_time or 0) >= 0.2e9
    assert span.parent is not None
    assert span.parent.span_id == caller
    assert span.status.status_code is StatusCode.UNSET
    (timeouts,) = telemetry.points("distlock.timeouts")
    assert timeouts.value == 1


def test_errors_have_their_class_and_not_their_message(
    telemetry: Telemetry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with advisory_lock(name, using="memory", shared=True), pytest.raises(DeadlockDetected):
        advisory_lock(name, using="memory").acquire()

    def fail(*args: Any) -> None:
        raise BackendUnavailable(f"{name} down")

    monkeypatch.setattr(registry.entry("memory").backend, "try_acquire", fail)
    with pytest.raises(BackendUnavailable):
        advisory_lock(name, using="memory").acquire()
    assert telemetry.outcomes() == ["acquired", "deadlock", "failed"]
    _, deadlock, down = telemetry.spans()
    assert (down.attributes or {})["error.type"] == "BackendUnavailable"
    assert down.status.status_code is StatusCode.ERROR
    assert name not in down.to_json() + deadlock.to_json()


def test_a_cancelled_wait_and_a_waiter(telemetry: Telemetry, name: str) -> None:
    async def cancelled() -> None:
        async with advisory_lock(name, using="memory"):
            waiter = asyncio.create_task(advisory_lock(name, using="memory").aacquire(timeout=None))
            await asyncio.to_thread(eventually, lambda: telemetry.points("distlock.waiting"), "nobody waits")
            (waiting,) = telemetry.points("distlock.waiting")
            assert waiting.value == 1
            waiter.cancel()
            await asyncio.wait([waiter])

    asyncio.run(cancelled())
    assert set(telemetry.outcomes()) == {"acquired", "cancelled"}
    assert not telemetry.points("distlock.waiting")


def test_a_loss_is_counted_with_its_reason(telemetry: Telemetry, name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    lose(lease, reason="session")
    with pytest.raises(LockLost):
        lease.release()
    (losses,) = telemetry.points("distlock.losses")
    assert (losses.value, losses.attributes["distlock.reason"]) == (1, "session")
    assert telemetry.points("distlock.hold")[0].count == 1
    assert telemetry.units() == {"distlock.wait": "s", "distlock.hold": "s", "distlock.losses": "{loss}"}


def test_names_made_of_data_do_not_become_labels(telemetry: Telemetry) -> None:
    names = ("account:7", "a:b:c", "ann@example.org", ":x")
    assert [prefix_label(name) for name in names] == ["account:*", "a:*", UNKNOWN, UNKNOWN]
    for number in range(MOST_LABELS + 20):
        with advisory_lock(f"kind-{number}:7", using="memory"):
            pass
    found = {point.attributes["distlock.template"] for point in telemetry.points("distlock.wait")}
    assert len(found) == MOST_LABELS + 1
    assert UNKNOWN in found


def test_labels_of_the_users_own_and_switched_off(telemetry: Telemetry, name: str) -> None:
    instrumentor = DistlockInstrumentor()
    instrumentor.uninstrument()
    assert not any(signal.receivers for signal in SIGNALS.values())
    reader = InMemoryMetricReader()
    instrumentor.instrument(meter_provider=MeterProvider([reader]), label=lambda name: name[:5])
    with advisory_lock(name, using="memory"):
        pass
    (point,) = Telemetry(None, telemetry.exporter, reader).points("distlock.wait")
    assert point.attributes["distlock.template"] == name[:5]
    assert not telemetry.spans()


@pytest.mark.tier2
def test_without_the_extra_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, os\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'testproject.settings'\n"
        "sys.modules['opentelemetry'] = None\n"  # as if it were not installed
        "import django; django.setup()\n"
        "from django_distlock import advisory_lock\n"
        "with advisory_lock('x', using='memory'): pass\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]\n"
        "assert 'django_distlock.operations.otel' not in sys.modules\n"
        "try: import django_distlock.operations.otel\n"
        "except ImportError: print('missing')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.stdout == "missing\n", done.stderr
