"""The tables for people, as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.budgets import Verdict
    from benchmarks.contended import Contention
    from benchmarks.results import Results
    from benchmarks.uncontended import Uncontended

TITLES = {
    "postgres": "PostgreSQL",
    "mysql": "MySQL (MariaDB)",
    "sqlite": "SQLite",
    "redis": "Redis",
    "redlock": "Redlock, 5 nodes",
    "zookeeper": "ZooKeeper",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay cells out in columns; the first is aligned left, figures right."""
    lines = [header, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in lines[1:])])


def around(median: float, low: float | None, high: float | None) -> str:
    """Show a ratio with its quartiles."""
    return f"{median:,.2f}" if low is None or high is None else f"{median:,.2f} ({low:,.2f}-{high:,.2f})"


def span(values: Sequence[float], pattern: str) -> str:
    """Show the lowest and the highest of several rounds."""
    low, high = format(min(values), pattern), format(max(values), pattern)
    return low if low == high else f"{low}-{high}"


def uncontended(group: str, result: Uncontended) -> str:
    """Show the cost of a pair."""
    where = "client and server on one CPU" if result.pinned else "NOT PINNED: ratios are noise of about 1.25"
    rows = [
        (c.entry, f"{c.median_us:,.1f}", f"{c.p95_us:,.1f}", around(c.ratio, c.ratio_low, c.ratio_high))
        for c in result.costs
    ]
    rows += [(entry, "-", "-", "failed") for entry in result.failed]
    title = f"{TITLES[group]}, nobody else wants the lock ({where})"
    return f"{title}\n\n{table(('', 'median us', 'p95 us', 'x bare (quartiles)'), rows)}"


def contended(group: str, results: Sequence[Contention]) -> str:
    """Show what competing processes got; all but the ratio as the range over the rounds."""
    rows = [
        (
            row.entry,
            span(row.rates, ",.0f"),
            around(row.ratio.median, row.ratio.low, row.ratio.high) if row.ratio else "-",
            f"{row.fair:.2f} ({span(row.fairs, '.2f')})",
            span(row.worsts_ms, ",.0f"),
            f"{row.lost:,}",
        )
        for row in results
        if row.rates
    ]
    rows += [(row.entry, "failed", "-", "-", "-", "-") for row in results if not row.rates]
    measure = results[0].entry  # the bare driver; where that excludes nobody, the first peer
    over = "x bare" if measure.startswith("bare") else f"x {measure}"
    header = ("", "hand-offs/s", f"{over} (quartiles)", "fair (rounds)", "worst wait ms", "lost updates")
    return f"{TITLES[group]}, 8 processes want one lock\n\n" + table(header, rows)


def budgets(verdicts: Iterable[Verdict]) -> str:
    """Show every budget with its verdict."""
    rows = []
    for each in verdicts:
        found = "-" if each.value is None else around(each.value, each.low, each.high)
        rows.append((f"{TITLES[each.group]}: {each.what}", each.limit, found, each.verdict))
    return "Budgets\n\n" + table(("", "budget", "measured (quartiles)", "verdict"), rows)


def heading(results: Results) -> str:
    """Say on what the figures were taken."""
    env = results.environment
    servers = ", ".join(env["servers"].values())
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    machine = f"{env['cpus']} CPUs, load before the run {env['load_before']}"
    return f"{servers}\nPython {env['python']}, {packages}\n{machine}"


def doubts(results: Results) -> str:
    """Say what a busy machine has done to the figures; nothing if it was idle."""
    env = results.environment
    if env["load_before"] <= env["cpus"] / 2:
        return ""
    return (
        "\n\nThe machine was busy with something else. Ratios without contention stand, and those of hand-offs unless"
        "\nit was very busy; milliseconds, shares and figures per second belong to an idle machine."
    )
