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

from django_distlock import BackendUnavailable, DeadlockDetected, LockLost, LockTimeout, advisory_lock, signals
from django_distlock.manager.registry import registry
from django_distlock.operations.otel import MOST_LABELS, UNKNOWN, DistlockInstrumentor, prefix_label
from django_distlock.testing import lose
from tests.engines.statements import counted
from tests.operations.test_signals import hold_in_thread
from tests.support.paths import ROOT
from tests.support.timing import within

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

    def points(self, metric: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
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


def labels(using: str, template: str) -> dict[str, str]:
    return {
        "distlock.using": using,
        "distlock.backend": type(registry.entry(using).backend).__name__,
        "distlock.template": template,
    }


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_decorated_lock_has_a_span_and_metrics_by_its_template(telemetry: Telemetry, using: str, name: str) -> None:
    template = name[-100:] + "-{number}"

    @advisory_lock(template, using=using)
    def settle(number: int) -> None:
        (held,) = telemetry.points("distlock.held")
        assert (held.value, dict(held.attributes)) == (1, labels(using, template))

    settle(7)
    settle(8)
    assert [dict(span.attributes or {}) for span in telemetry.spans()] == [
        labels(using, template) | {"distlock.outcome": "acquired"}
    ] * 2
    for metric in ("distlock.wait", "distlock.hold"):
        (point,) = telemetry.points(metric)
        assert (point.count, dict(point.attributes)) == (2, labels(using, template))
        assert point.sum < 5
        assert point.explicit_bounds[0] == 0.001
    assert not telemetry.points("distlock.held")
    assert not telemetry.points("distlock.timeouts")


@pytest.mark.parametrize("using", ["memory", "leasetable", "postgres"])
def test_the_span_is_as_long_as_the_wait_and_inside_the_span_of_its_caller(
    telemetry: Telemetry, using: str, name: str
) -> None:
    lock = advisory_lock(name, using=using, timeout=0.2)
    holder = hold_in_thread(advisory_lock(name, using=using))  # may connect first
    next(holder)
    with telemetry.tracer.start_as_current_span("caller") as caller, pytest.raises(LockTimeout):
        lock.acquire()
    next(holder, None)
    (span,) = (s for s in telemetry.spans() if s.attributes and s.attributes["distlock.outcome"] == "timed_out")
    within(seconds(span), 0.5, least=0.2)
    assert span.parent is not None
    assert span.parent.span_id == caller.get_span_context().span_id
    assert span.status.status_code is StatusCode.UNSET
    (timeouts,) = telemetry.points("distlock.timeouts")
    assert timeouts.value == 1


def test_the_span_has_its_parent_in_tasks_and_in_code_that_they_await(telemetry: Telemetry, name: str) -> None:
    async def one(number: int) -> tuple[int, int]:
        with telemetry.tracer.start_as_current_span(f"caller-{number}") as caller:
            async with advisory_lock(f"{name}-async", using="memory"):
                await asyncio.sleep(0)
            await sync_to_async(lambda: advisory_lock(f"{name}-sync", using="memory").acquire().release())()
            return caller.get_span_context().span_id, number

    async def both() -> list[tuple[int, int]]:
        return await asyncio.gather(one(1), one(2))

    callers = asyncio.run(both())
    parents = [span.parent.span_id for span in telemetry.spans() if span.parent]
    assert sorted(parents) == sorted(caller for caller, _ in callers for _ in range(2))


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
    _, deadlock, down = telemetry.spans()
    assert [span.attributes and span.attributes["distlock.outcome"] for span in (deadlock, down)] == [
        "deadlock",
        "failed",
    ]
    assert down.attributes is not None
    assert down.attributes["error.type"] == "BackendUnavailable"
    assert down.status.status_code is StatusCode.ERROR
    assert name not in down.to_json() + deadlock.to_json()


def test_a_cancelled_wait_and_a_waiter(telemetry: Telemetry, name: str) -> None:
    async def cancelled() -> None:
        async with advisory_lock(name, using="memory"):
            waiter = asyncio.create_task(advisory_lock(name, using="memory").aacquire(timeout=None))
            await asyncio.sleep(0.01)
            (waiting,) = telemetry.points("distlock.waiting")
            assert waiting.value == 1
            waiter.cancel()
            await asyncio.wait([waiter])

    asyncio.run(cancelled())
    assert {"acquired", "cancelled"} == {s.attributes and s.attributes["distlock.outcome"] for s in telemetry.spans()}
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
    assert [prefix_label(name) for name in ("account:7", "a:b:c", "ann@example.org", ":x")] == [
        "account:*",
        "a:*",
        UNKNOWN,
        UNKNOWN,
    ]
    for number in range(MOST_LABELS + 20):
        with advisory_lock(f"kind-{number}:7", using="memory"):
            pass
    found = {point.attributes["distlock.template"] for point in telemetry.points("distlock.wait")}
    assert len(found) == MOST_LABELS + 1
    assert UNKNOWN in found


def test_labels_of_the_users_own(telemetry: Telemetry, name: str) -> None:
    instrumentor = DistlockInstrumentor()
    instrumentor.uninstrument()
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    instrumentor.instrument(meter_provider=meters, label=lambda name: name[:5])
    instrumentor.instrument(label=str)  # on already
    with advisory_lock(name, using="memory"):
        pass
    (point,) = Telemetry(None, telemetry.exporter, reader).points("distlock.wait")
    assert point.attributes["distlock.template"] == name[:5]
    meters.shutdown()


def test_switched_off_nothing_listens_and_nothing_is_written(telemetry: Telemetry, name: str) -> None:
    DistlockInstrumentor().uninstrument()
    assert not any(signal.receivers for signal in vars(signals).values() if hasattr(signal, "receivers"))
    with advisory_lock(name, using="memory"):
        assert not telemetry.points("distlock.held")
    assert not telemetry.spans()


def test_it_costs_no_statement(telemetry: Telemetry, name: str) -> None:
    def pairs() -> dict[str, int]:
        with counted("postgres") as seen:
            for _ in range(3):
                with advisory_lock(name, using="postgres"):
                    pass
        return {text: calls for text, calls in seen.items() if "advisory" in text}

    with advisory_lock(name, using="postgres"):
        pass
    on = pairs()
    DistlockInstrumentor().uninstrument()
    assert pairs() == on
    assert sum(on.values()) == 6


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "missing\n", done.stderr
