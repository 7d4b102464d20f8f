"""One SVG: the holds of each second for every engine, with a line for each fault, in the style of the benchmarks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.plot import STYLE, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.run import Result

LEFT, WIDTH, HEIGHT, GAP, TOP, RIGHT = 60, 760, 70, 56, 50, 16
COLOURS = {
    "kill -9": "#cf222e", "SIGSTOP": "#bf8700", "Ctrl-C": "#8250df", "delay": "#9a6700",
    "lost reply": "#1a7f37", "half-close": "#0969da", "cut": "#bc4c00", "silence": "#6e7781", "session kill": "#bf3989",
    "server stops": "#1b7c83", "server restarts": "#a40e26",
}  # fmt: skip
MARKS = "".join(f"  .f{number} {{ stroke: {colour}; }}\n" for number, colour in enumerate(COLOURS.values()))
EXTRA = f"  .bar {{ fill: var(--ours); opacity: 0.45; }} .mark {{ stroke-width: 1.5; }}\n{MARKS}"


def draw(results: Sequence[Result], seed: int) -> str:
    """Return the SVG document."""
    body: list[str] = []
    y = TOP
    for result in results:
        body += panel(result, y)
        y += HEIGHT + GAP
    body += legend(y)
    width, height = LEFT + WIDTH + RIGHT, y + 40
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="title description">',
            '<title id="title">Holds per second under faults</title>',
            f'<desc id="description">{describe(results)}</desc>',
            f"<style>{STYLE}{EXTRA}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            text(LEFT, 26, f"Holds per second under faults, seed {seed}", "title"),
            *body,
            "</svg>\n",
        ]
    )


def panel(result: Result, top: int) -> Iterator[str]:
    """Draw one engine: a bar for each second, a line for each fault."""
    span = max(1, round(result.seconds))
    counts = Counter(int(hold.acquired - result.began) for hold in result.holds)
    most, step, bottom = max([1, *counts.values()]), WIDTH / span, top + 14 + HEIGHT
    yield text(LEFT, top + 6, result.using, "group")
    yield text(LEFT - 6, top + 24, str(most), "faint", "end")
    yield text(LEFT - 6, bottom, "0", "faint", "end")
    for second in range(span):
        tall = HEIGHT * counts[second] / most
        x = LEFT + second * step
        yield f'<rect class="bar" x="{x:.1f}" y="{bottom - tall:.1f}" width="{step * 0.9:.2f}" height="{tall:.1f}"/>'
    for mark in result.marks:
        x = LEFT + (mark.at - result.began) * step
        kind = list(COLOURS).index(mark.kind)
        yield f'<line class="mark f{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 14}" y2="{bottom}"/>'
    yield f'<line class="rule" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{bottom}" y2="{bottom}"/>'
    yield text(LEFT + WIDTH, bottom + 14, f"{result.seconds:.0f} s", "faint", "end")


def legend(y: int) -> Iterator[str]:
    for number, kind in enumerate(COLOURS):
        x, line = LEFT + number % 6 * 126, y + number // 6 * 18
        yield f'<line class="mark f{number}" x1="{x}" x2="{x}" y1="{line - 10}" y2="{line + 2}"/>'
        yield text(x + 6, line, kind, "faint")


def describe(results: Sequence[Result]) -> str:
    """Say the figures in words, for readers who do not see the plot."""
    return " ".join(
        f"{result.using}: {len(result.holds)} holds in {result.seconds:.0f} s, {len(result.marks)} faults."
        for result in results
    )
