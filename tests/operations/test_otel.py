"""Spans and metrics, as the OpenTelemetry SDK's exporters in memory see them."""

from __future__ import annotations

import asyncio
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

from django_distlock import LockLost, advisory_lock
from django_distlock.operations.otel import MOST_LABELS, UNKNOWN, DistlockInstrumentor, prefix_label
from django_distlock.testing import lose
from tests.conftest import eventually
from tests.operations.test_signals import misfortunes
from tests.operations.world import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_outcomes_have_the_class_of_an_error_and_not_its_message(
    telemetry: Telemetry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
