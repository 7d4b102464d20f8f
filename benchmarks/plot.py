"""One SVG with a dot per entry and figure, readable on a light and on a dark page, drawn without a plotting library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.entries import GROUPS
from benchmarks.report import TITLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.results import Results

LABEL_WIDTH, PLOT_WIDTH, VALUE_WIDTH, GAP = 270, 140, 62, 18
ROW, TOP, MARGIN = 22, 78, 16
COLUMN = PLOT_WIDTH + VALUE_WIDTH + GAP

STYLE = """
  svg { --page: #ffffff; --ink: #1f2328; --faint: #59636e; --rule: #d1d9e0; --peer: #59636e; --ours: #0550ae; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #0d1117; --ink: #f0f6fc; --faint: #9198a1; --rule: #3d444d; --peer: #9198a1; --ours: #79c0ff; }
  }
  text { font: 12px system-ui, sans-serif; fill: var(--ink); }
  .page { fill: var(--page); } .faint { fill: var(--faint); font-size: 11px; }
  .title { font-size: 15px; font-weight: 600; } .group { font-weight: 600; }
  .rule { stroke: var(--rule); stroke-width: 1; }
  .peer { fill: var(--peer); } .ours { fill: var(--ours); } text.ours { font-weight: 600; }
"""


@dataclass(frozen=True)
class Axis:
    """One column: what it shows, which way is good, and its scale."""

    title: str
    hint: str
    pattern: str
    low: float
    high: float
    logarithmic: bool
    value: Callable[[Results, str, str], float]

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to PLOT_WIDTH; what is out of range sits on the edge."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        return PLOT_WIDTH * (here - low) / (high - low)

    def ticks(self) -> Sequence[float]:
        """Return the decades of the scale, or its quarters."""
        if not self.logarithmic:
            return [self.low + (self.high - self.low) * part / 4 for part in (0, 2, 4)]
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        return [10.0**power for power in range(first, last + 1)]


AXES = (
    Axis("uncontended, x bare", "less is better", ",.2f", 0.1, 100, True, lambda r, g, e: r.cost(g, e).ratio),
    Axis("hand-offs/s", "more is better", ",.0f", 10, 100_000, True, lambda r, g, e: r.contention(g, e).rate),
    Axis("fair", "1 is equal shares", ".2f", 0, 1, False, lambda r, g, e: r.contention(g, e).fair),
    Axis("worst wait, ms", "less is better", ",.0f", 1, 10_000, True, lambda r, g, e: r.contention(g, e).worst_ms),
)
WIDTH = MARGIN * 2 + LABEL_WIDTH + COLUMN * len(AXES) - GAP


def draw(results: Results) -> str:
    """Return the SVG document; an entry that has no figure at all is left out."""
    body, y = [], TOP
    for group in sorted({*results.uncontended, *results.contended}, key=list(GROUPS).index):
        y += ROW
        body.append(text(MARGIN, y, TITLES[group], "group"))
        for kind in GROUPS[group]:
            values = [figure(axis, results, group, kind.label) for axis in AXES]
            if (kind.exclusive or kind.uncontended) and any(value is not None for value in values):
                y += ROW
                body += row(y, kind.label, values, "ours" if kind.ours else "peer")
        y += ROW // 2
    height = y + ROW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            ' role="img" aria-labelledby="title description">',
            '<title id="title">Locks side by side</title>',
            f'<desc id="description">{escape(describe(results))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}"/>',
            text(MARGIN, 26, "Acquire and release, side by side in one run", "title"),
            *header(y),
            *body,
            "</svg>\n",
        ]
    )


def figure(axis: Axis, results: Results, group: str, entry: str) -> float | None:
    """Return the value of one cell, None if it was not measured."""
    try:
        return axis.value(results, group, entry)
    except LookupError:
        return None


def header(bottom: int) -> Iterator[str]:
    """Draw the titles, hints and scales of the columns."""
    for number, axis in enumerate(AXES):
        left = MARGIN + LABEL_WIDTH + COLUMN * number
        yield text(left, 46, axis.title, "group")
        yield text(left, 60, axis.hint, "faint")
        for tick in axis.ticks():
            x = left + axis.place(tick)
            yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 4}" y2="{bottom}"/>'
            yield text(x, TOP, short(tick), "faint", "middle")


def row(y: int, label: str, values: Sequence[float | None], kind: str) -> Iterator[str]:
    """Draw one entry: its name, and for every figure a dot and the number."""
    yield text(MARGIN + 10, y, label, kind if kind == "ours" else "")
    for number, (axis, value) in enumerate(zip(AXES, values, strict=True)):
        if value is None:
            continue
        left = MARGIN + LABEL_WIDTH + COLUMN * number
        yield f'<circle class="{kind}" cx="{left + axis.place(value):.1f}" cy="{y - 4}" r="5"/>'
        yield text(left + PLOT_WIDTH + VALUE_WIDTH - 6, y, format(value, axis.pattern), "", "end")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Return one text element."""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(content)}</text>'


def short(value: float) -> str:
    """Write a tick so that it fits between its neighbours."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def describe(results: Results) -> str:
    """Say the main figures in words, for readers who do not see the plot."""
    parts = []
    for group, result in results.uncontended.items():
        costs = ", ".join(f"{cost.entry} {cost.ratio:.2f}" for cost in result.costs)
        parts.append(f"{TITLES[group]}, cost of a pair over the bare driver: {costs}.")
    return " ".join(parts)
