"""Bar charts of a replay, in the geometry of the registration app."""

from __future__ import annotations

from typing import Any

from testproject.registration.plots import ROW, Bar, Plot, scale_to


def plots(result: dict[str, Any]) -> list[Plot]:
    """Orders made by each way, as a form and as an API, for Replay.as_json()."""
    kinds = [phase["kind"] for phase in result["ways"][0]["phases"]]
    return [plot(result["ways"], number, kind) for number, kind in enumerate(kinds)]


def plot(ways: list[dict[str, Any]], number: int, kind: str) -> Plot:
    phases = [way["phases"][number] for way in ways]
    scale = scale_to(phase["orders"] for phase in phases)
    bars = [
        Bar(way["title"], figure(phase), ROW * row, phase["orders"] * scale, alarm=phase["duplicates"] > 0)
        for row, (way, phase) in enumerate(zip(ways, phases, strict=True))
    ]
    return Plot(f"orders-{number}", f"Orders made by sending one {kind} {phases[0]['requests']} times at once", bars)


def figure(phase: dict[str, Any]) -> str:
    return f"{phase['orders']}" + (f" ({phase['duplicates']} too many)" if phase["duplicates"] else "")
