"""The tables for people, as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.contended import Contention
    from benchmarks.giving_up import GivingUp
    from benchmarks.growth import Growth
    from benchmarks.idempotency import Request
    from benchmarks.idle import Idle
    from benchmarks.results import Results
    from benchmarks.tasks import Crowd
    from benchmarks.uncontended import Uncontended
    from benchmarks.verdicts import Verdict

TITLES = {
    "postgres": "PostgreSQL",
    "mysql": "MySQL (MariaDB)",
    "sqlite": "SQLite",
    "redis": "Redis",
    "redlock": "Redlock, 5 nodes",
    "redlock-far": "Redlock, 5 nodes with 1 ms of delay",
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


def span(values: Sequence[float], pattern: str) -> str:
    """Show the lowest and the highest of several runs."""
    low, high = format(min(values), pattern), format(max(values), pattern)
    return low if low == high else f"{low}-{high}"


def uncontended(group: str, result: Uncontended) -> str:
    """Show the cost of a pair."""
    where = "client and server on one CPU" if result.pinned else "NOT PINNED: ratios are noise of about 1.25"
    rows = [(c.entry, f"{c.median_us:,.1f}", f"{c.p95_us:,.1f}", f"{c.ratio:.2f}") for c in result.costs]
    rows += [(entry, "-", "-", "failed") for entry in result.failed]
    title = f"{TITLES[group]}, nobody else wants the lock ({where})"
    return f"{title}\n\n{table(('', 'median us', 'p95 us', 'x bare'), rows)}"


def contended(group: str, results: Sequence[Contention]) -> str:
    """Show what competing processes got, as ranges over the runs."""
    rows = []
    measure = results[0]  # the bare driver; where that excludes nobody, the first peer
    for row in results:
        if not row.rates:
            rows.append((row.entry, "failed", "-", "-", "-", "-"))
            continue
        bare = measure.rate if measure.rates else 0.0
        rows.append(
            (
                row.entry,
                span(row.rates, ",.0f"),
                f"{row.rate / bare:.2f}" if bare else "-",
                span(row.fairs, ".2f"),
                span(row.worsts_ms, ",.0f"),
                f"{row.lost:,}",
            )
        )
    over = "x bare" if measure.entry.startswith("bare") else f"x {measure.entry}"
    header = ("", "hand-offs/s", over, "fair", "worst wait ms", "lost updates")
    return f"{TITLES[group]}, 8 processes want one lock\n\n" + table(header, rows)


def tasks(crowds: Iterable[Crowd]) -> str:
    """Show what many tasks of one process got."""
    rows = [
        (
            TITLES[crowd.group],
            f"{crowd.served:,} of {crowd.tasks:,}",
            f"{crowd.seconds:.2f}",
            str(crowd.out_of_order),
            str(crowd.sessions),
            str(crowd.threads),
            f"{crowd.fair:.2f}",
            f"{crowd.rate:,.0f}",
        )
        for crowd in crowds
    ]
    header = ("", "served", "seconds", "out of order", "sessions", "threads", "fair (20)", "hand-offs/s (20)")
    return "asyncio tasks of one process want one lock (sessions as the server sees them)\n\n" + table(header, rows)


def growth(group: str, rows: Iterable[Growth]) -> str:
    """Show the cost of a pair against what else is held."""
    cells = [
        (row.where, f"{row.held:,}", "failed", "-", "-")
        if row.error
        else (row.where, f"{row.held:,}", f"{row.median_us:,.1f}", f"{row.ratio:.2f}", f"{row.against_fewest:.2f}")
        for row in rows
    ]
    header = ("other locks are held by", "how many", "median us", "x bare", "against fewest")
    return f"{TITLES[group]}, while other locks are held\n\n" + table(header, cells)


def idle(group: str, rows: Sequence[Idle]) -> str:
    """Show what waiting costs the server."""
    cells = [(row.entry, "failed", "-") if row.error else idle_cells(row) for row in rows]
    title = f"{TITLES[group]}, {rows[0].waiters} waiters whose locks are not freed"
    return f"{title}\n\n" + table(("", "requests/s", "per waiter"), cells)


def idle_cells(row: Idle) -> tuple[str, str, str]:
    """Show one entry's requests."""
    return row.entry, f"{row.per_second:,.1f}", f"{row.per_second / row.waiters:.3f}"


def giving_up(group: str, rows: Sequence[GivingUp]) -> str:
    """Show how exactly a wait ends."""
    cells = [(row.entry, "failed" if row.error else f"{row.seconds:.2f}") for row in rows]
    title = f"{TITLES[group]}, the last of a queue waits {rows[0].asked:g} s while those ahead of it give up"
    return f"{title}\n\n" + table(("", "seconds"), cells)


def idempotency(group: str, rows: Sequence[Request]) -> str:
    """Show what a key costs a whole request."""
    cells = [(row.way, f"{row.median_us:,.0f}", f"{row.ratio:.2f}") for row in rows]
    title = f"{TITLES[group]}, a whole request through Django's test client; the view writes one row"
    return f"{title}\n\n" + table(("", "median us", "x without"), cells)


def editing(group: str, rows: Sequence[Request]) -> str:
    """Show what an edit lock costs a request and a save."""
    cells = [(row.way, f"{row.median_us:,.0f}", f"{row.ratio:.2f}" if row.ratio else "-") for row in rows]
    title = f"{TITLES[group]}, processor time of a whole request; statements are counted"
    return f"{title}\n\n" + table(("", "median us", "x empty"), cells)


def browser(group: str, rows: Sequence[Request]) -> str:
    """Show what a request of distlock.js costs."""
    cells = [(row.way, f"{row.median_us:,.0f}", f"{row.ratio:.2f}") for row in rows]
    title = f"{TITLES[group]}, processor time of a whole request of distlock.js"
    return f"{title}\n\n" + table(("", "median us", "x empty"), cells)


def budgets(verdicts: Iterable[Verdict]) -> str:
    """Show every budget with its verdict."""
    rows = [
        (f"{TITLES[v.group]}: {v.what}", v.limit, "-" if v.value is None else f"{v.value:,.2f}", v.verdict)
        for v in verdicts
    ]
    return "Budgets\n\n" + table(("", "budget", "measured", "verdict"), rows)


def heading(results: Results) -> str:
    """Say on what the figures were taken."""
    env = results.environment
    servers = ", ".join(env["servers"].values())
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    machine = f"{env['cpus']} CPUs, load before the run {env['load_before']}"
    text = f"{servers}\nPython {env['python']}, {packages}\n{machine}"
    if env["load_before"] > env["cpus"] / 2:
        text += "\nThis machine is busy with something else: contended figures say little."
    return text
