"""A receiver for every signal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django_distlock import signals

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = {
    "acquired": signals.lock_acquired,
    "released": signals.lock_released,
    "timed_out": signals.lock_timed_out,
    "failed": signals.lock_failed,
    "lost": signals.lock_lost,
    "broken": signals.lock_broken,
}


class Heard(list[tuple[str, dict[str, Any]]]):
    """What was sent, in order."""

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]

    def facts(self, kind: str) -> dict[str, Any]:
        """Of the only one of its kind."""
        (found,) = (facts for heard, facts in self if heard == kind)
        return found


@contextmanager
def listening(name: str | None = None) -> Iterator[Heard]:
    """Hear of one lock, or of all."""
    heard = Heard()

    def receiver(kind: str) -> Any:
        def receive(**facts: Any) -> None:
            if name in (None, facts["name"]):
                heard.append((kind, facts))

        return receive

    receivers = {kind: receiver(kind) for kind in SIGNALS}
    for kind, signal in SIGNALS.items():
        signal.connect(receivers[kind])
    try:
        yield heard
    finally:
        for kind, signal in SIGNALS.items():
            signal.disconnect(receivers[kind])
