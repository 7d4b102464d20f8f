"""One SVG with a dot per entry and figure, readable on a light and on a dark page, drawn without a plotting library."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.entries import GROUPS
from benchmarks.report import TITLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.entries.base import Entry
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


class Axis(NamedTuple):
    """One column: what it shows, which way is good, and its ticks, equally far from each other."""

    title: str
    hint: str
    pattern: str
    ticks: tuple[float, ...]
    value: Callable[[Results, str, str], float]

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to PLOT_WIDTH; what is out of range sits on the edge."""
        scale = math.log10 if self.ticks[0] else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        here = scale(min(max(value, self.ticks[0]), self.ticks[-1]))
        return PLOT_WIDTH * (here - low) / (high - low)


AXES = (
    Axis("uncontended, x bare", "less is better", ",.2f", (0.1, 1, 10, 100), lambda r, g, e: r.cost(g, e).ratio),
    Axis("hand-offs/s", "more is better", ",.0f", (10, 100, 1e3, 1e4, 1e5), lambda r, g, e: r.contention(g, e).rate),
    Axis("fair", "1 is equal shares", ".2f", (0, 0.5, 1), lambda r, g, e: r.contention(g, e).fair),
    Axis(
        "worst wait, ms", "less is better", ",.0f", (1, 10, 100, 1e3, 1e4), lambda r, g, e: r.contention(g, e).worst_ms
    ),
)
WIDTH = MARGIN * 2 + LABEL_WIDTH + COLUMN * len(AXES) - GAP


def draw(results: Results) -> str:
    """Return the SVG document; an entry that has no figure at all is left out."""
    body, y = [], TOP
    for group in (group for group in GROUPS if group in results.uncontended or group in results.contended):
        y += ROW
        body.append(text(MARGIN, y, TITLES[group], "group"))
        for entry in GROUPS[group]:
            if (entry.exclusive or entry.uncontended) and (dots := list(row(results, group, entry, y + ROW))):
                y += ROW
                body += [text(MARGIN + 10, y, entry.label, "ours" if entry.ours else ""), *dots]
        y += ROW // 2
    height = y + ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" aria-labelledby="title description">',
        '<title id="title">Locks side by side</title>',
        '<desc id="description">The cost of a pair and the hand-offs of each entry, as in the tables.</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        text(MARGIN, 26, "Acquire and release, side by side in one run", "title"),
    ]
    return "\n".join([*parts, *header(y), *body, "</svg>\n"])


def header(bottom: int) -> Iterator[str]:
    """Draw the titles, hints and scales of the columns."""
    for number, axis in enumerate(AXES):
        left = MARGIN + LABEL_WIDTH + COLUMN * number
        yield text(left, 46, axis.title, "group")
        yield text(left, 60, axis.hint, "faint")
        for tick in axis.ticks:
            x = left + axis.place(tick)
            yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 4}" y2="{bottom}"/>'
            yield text(x, TOP, f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}", "faint", "middle")


def row(results: Results, group: str, entry: Entry, y: int) -> Iterator[str]:
    """Draw a dot and the number for every figure of one entry that was measured."""
    kind = "ours" if entry.ours else "peer"
    for number, axis in enumerate(AXES):
        try:
            value = axis.value(results, group, entry.label)
        except LookupError:
            continue
        left = MARGIN + LABEL_WIDTH + COLUMN * number
        yield f'<circle class="{kind}" cx="{left + axis.place(value):.1f}" cy="{y - 4}" r="5"/>'
        yield text(left + PLOT_WIDTH + VALUE_WIDTH - 6, y, format(value, axis.pattern), "", "end")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Return one text element."""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(content)}</text>'
