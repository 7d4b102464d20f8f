"""A receiver for every signal."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django_distlock import signals

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = {
    kind: getattr(signals, f"lock_{kind}") for kind in ("acquired", "released", "timed_out", "failed", "lost", "broken")
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
    with ExitStack() as stack:
        for kind, signal in SIGNALS.items():

            def receive(kind: str = kind, **facts: Any) -> None:
                if name in (None, facts["name"]):
                    heard.append((kind, facts))

            signal.connect(receive, weak=False)
            stack.callback(signal.disconnect, receive)
        yield heard
