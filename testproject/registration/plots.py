"""Bar charts of a replay, as geometry for the SVG template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTH = 340
ROW = 46
# Room right of the longest bar for its figure.
FIGURE = 125


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a label, a bar `width` long with its figure behind it, and a thin line to `reach` (p99) if there is one.

    `y` is the row's upper edge; all lengths are in the SVG's own units.
    """

    label: str
    figure: str
    y: int
    width: float
    reach: float | None = None
    alarm: bool = False

    @property
    def figure_x(self) -> float:
        return max(self.width, self.reach or 0) + 8


@dataclass(frozen=True, slots=True)
class Plot:
    ident: str
    title: str
    bars: list[Bar]

    @property
    def height(self) -> int:
        return ROW * len(self.bars)

    @property
    def description(self) -> str:
        return "; ".join(f"{bar.label}: {bar.figure}" for bar in self.bars) + "."


def plots(result: dict[str, Any]) -> list[Plot]:
    """Accounts made from identical sign-ups, and log-in times meanwhile, for Replay.as_json()."""
    return [accounts_plot(result["ways"]), log_in_plot(result["ways"])]


def accounts_plot(ways: list[dict[str, Any]]) -> Plot:
    scale = scale_to(way["identical"]["accounts"] for way in ways)
    bars = [
        Bar(
            way["title"],
            accounts_figure(way["identical"]),
            ROW * row,
            way["identical"]["accounts"] * scale,
            alarm=way["identical"]["duplicates"] > 0,
        )
        for row, way in enumerate(ways)
    ]
    return Plot("accounts", f"Accounts made from {ways[0]['identical']['requests']} sign-ups with one address", bars)


def accounts_figure(phase: dict[str, Any]) -> str:
    return f"{phase['accounts']}" + (f" ({phase['duplicates']} too many)" if phase["duplicates"] else "")


def log_in_plot(ways: list[dict[str, Any]]) -> Plot:
    phases = [way["distinct"] or way["identical"] for way in ways]
    scale = scale_to(phase["log_ins"]["p99"] for phase in phases)
    bars = [
        Bar(
            way["title"],
            f"{phase['log_ins']['p50']:.0f} / {phase['log_ins']['p99']:.0f} ms",
            ROW * row,
            phase["log_ins"]["p50"] * scale,
            phase["log_ins"]["p99"] * scale,
        )
        for row, (way, phase) in enumerate(zip(ways, phases, strict=True))
    ]
    return Plot("log-ins", "Time to log in meanwhile: median (bar) and 99th percentile (line)", bars)


def scale_to(values: Any) -> float:
    """Units per value, so that the largest bar leaves room for its figure."""
    return (WIDTH - FIGURE) / max(*values, 1)
