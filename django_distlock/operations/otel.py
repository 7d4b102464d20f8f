"""Spans and metrics through OpenTelemetry (extra ``otel``). Off by default::

    from django_distlock.operations.otel import DistlockInstrumentor

    DistlockInstrumentor().instrument()

``opentelemetry-instrument`` finds it and switches it on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from django_distlock import signals
from django_distlock.exceptions import DeadlockDetected
from django_distlock.manager.lock_table import State, lock_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Observation

    from django_distlock.manager.lock_table import Hold

SCOPE = "django_distlock"
# In seconds; the default buckets of the SDK are for milliseconds.
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HOLD_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
# Labels that one process makes of names; further names share UNKNOWN.
MOST_LABELS = 100
UNKNOWN = "-"


def prefix_label(name: str) -> str:
    """``account:*`` for ``account:7``; ``-`` for a name without a colon, which may be an e-mail address."""
    kind, colon, _ = name.partition(":")
    return f"{kind}:*" if colon and kind else UNKNOWN


class DistlockInstrumentor:
    """Switches spans and metrics of all locks of this process on and off. Every call of the class returns the same
    object."""

    _only: ClassVar[DistlockInstrumentor | None] = None
    _guard = threading.Lock()
    _on = False

    def __new__(cls) -> Self:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only  # type: ignore[return-value]

    def instrument(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        label: Callable[[str], str] = prefix_label,
        **kwargs: Any,
    ) -> None:
        """Switch spans and metrics on, if they are off.

        :param tracer_provider: and ``meter_provider`` replace the global ones.
        :param label: makes the ``distlock.template`` of a name that is not from a decorator. It must return few
            different values. By default ``account:7`` is ``account:*``, and a name without a colon is ``-``.

        Other keyword arguments are ignored.
        """
        with self._guard:
            if self._on:
                return
            self._label, self._labels = label, set[str]()
            self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
            self._instruments(metrics.get_meter(SCOPE, meter_provider=meter_provider))
            for signal, receiver in self._receivers():
                signal.connect(receiver, dispatch_uid=SCOPE)
            self._on = True

    def uninstrument(self, **kwargs: Any) -> None:
        """Switch spans and metrics off."""
        with self._guard:
            for signal, receiver in self._receivers():
                signal.disconnect(receiver, dispatch_uid=SCOPE)
            self._on = False

    def _receivers(self) -> list[tuple[Any, Callable[..., None]]]:
        return [
            (signals.lock_acquired, self._acquired),
            (signals.lock_released, self._released),
            (signals.lock_timed_out, self._timed_out),
            (signals.lock_failed, self._failed),
            (signals.lock_lost, self._lost),
        ]

    def _instruments(self, meter: metrics.Meter) -> None:
        self._waits = meter.create_histogram(
            "distlock.wait", "s", "Time until a lock was got", explicit_bucket_boundaries_advisory=WAIT_BUCKETS
        )
        self._holds = meter.create_histogram(
            "distlock.hold", "s", "Time that a lock was held", explicit_bucket_boundaries_advisory=HOLD_BUCKETS
        )
        self._timeouts = meter.create_counter("distlock.timeouts", "{timeout}", "Locks that were busy to the end")
        self._losses = meter.create_counter("distlock.losses", "{loss}", "Locks that were lost while they were held")
        held, waiting = (lambda _: self._count(lock_table.held())), (lambda _: self._count(_waiting()))
        meter.create_observable_up_down_counter("distlock.held", [held], "{lock}", "Locks that this process holds")
        meter.create_observable_up_down_counter("distlock.waiting", [waiting], "{waiter}", "Waiters of this process")

    # --- receivers of the signals

    def _acquired(self, sender: type, *, wait: float, **facts: Any) -> None:
        attributes = self._attributes(sender, **facts)
        self._waits.record(wait, attributes)
        self._span(wait, attributes, "acquired")

    def _released(self, sender: type, *, hold: float, **facts: Any) -> None:
        self._holds.record(hold, self._attributes(sender, **facts))

    def _timed_out(self, sender: type, *, wait: float, **facts: Any) -> None:
        attributes = self._attributes(sender, **facts)
        self._timeouts.add(1, attributes)
        self._span(wait, attributes, "timed_out")

    def _failed(self, sender: type, *, wait: float, error: BaseException, **facts: Any) -> None:
        attributes = self._attributes(sender, **facts)
        if isinstance(error, asyncio.CancelledError):
            self._span(wait, attributes, "cancelled")
            return
        outcome = "deadlock" if isinstance(error, DeadlockDetected) else "failed"
        self._span(wait, attributes, outcome, error=type(error).__qualname__)

    def _lost(self, sender: type, *, hold: float, reason: str, **facts: Any) -> None:
        attributes = self._attributes(sender, **facts)
        self._holds.record(hold, attributes)
        self._losses.add(1, {**attributes, "distlock.reason": reason})

    def _span(self, wait: float, attributes: dict[str, str], outcome: str, *, error: str = "") -> None:
        """Record a span that ends now, as a child of the caller's current span."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "distlock.acquire",
            kind=SpanKind.INTERNAL,
            attributes={**attributes, "distlock.outcome": outcome},
            start_time=now - int(wait * 1e9),
        )
        if error:  # the class only: a message may contain the name
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)

    # --- labels

    def _attributes(
        self, sender: type, *, name: str, using: str, template: str | None = None, **facts: Any
    ) -> dict[str, str]:
        return {
            "distlock.using": using,
            "distlock.backend": sender.__name__,
            "distlock.template": template or self._label_of(name),
        }

    def _label_of(self, name: str) -> str:
        label = self._label(name)
        if label in self._labels:
            return label
        if len(self._labels) >= MOST_LABELS:
            return UNKNOWN
        self._labels.add(label)
        return label

    # --- gauges

    def _count(self, found: list[Hold]) -> list[Observation]:
        if not self._on:  # an instrument cannot be removed
            return []
        counts: Counter[tuple[tuple[str, str], ...]] = Counter()
        for one in found:
            labels = self._attributes(
                type(one.backend), name=one.key.name, using=one.backend.alias, template=one.template
            )
            counts[tuple(labels.items())] += 1
        return [metrics.Observation(count, dict(labels)) for labels, count in counts.items()]


def _waiting() -> list[Hold]:
    return [one for one in lock_table.all() if one.state in (State.WAITING, State.CLAIMING)]
