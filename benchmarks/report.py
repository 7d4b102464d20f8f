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
    from benchmarks.signups.measure import SignUps
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
    rows = []
    for row in results:
        if not row.rates:
            rows.append((row.entry, "failed", "-", "-", "-", "-"))
            continue
        rows.append(
            (
                row.entry,
                span(row.rates, ",.0f"),
                around(row.ratio.median, row.ratio.low, row.ratio.high) if row.ratio else "-",
                f"{row.fair:.2f} ({span(row.fairs, '.2f')})",
                span(row.worsts_ms, ",.0f"),
                f"{row.lost:,}",
            )
        )
    measure = results[0].entry  # the bare driver; where that excludes nobody, the first peer
    over = "x bare" if measure.startswith("bare") else f"x {measure}"
    header = ("", "hand-offs/s", f"{over} (quartiles)", "fair (rounds)", "worst wait ms", "lost updates")
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


def signups(group: str, rows: Sequence[SignUps]) -> str:
    """Show what each way gets done."""
    cells = [
        (
            row.entry,
            span(row.rates, ",.0f"),
            around(row.ratio.median, row.ratio.low, row.ratio.high) if row.ratio else "-",
            f"{row.made:,}",
            f"{row.taken:,}",
            f"{row.duplicates:,}",
        )
        if row.rates
        else (row.entry, "failed", "-", "-", "-", "-")
        for row in rows
    ]
    title = f"{TITLES[group]}, 8 clients sign up at a real server, half of them with an address that two post at once"
    header = ("", "sign-ups/s", f"x {rows[0].entry} (quartiles)", "made", "taken", "duplicates")
    return f"{title}\n\n" + table(header, cells)


def budgets(verdicts: Iterable[Verdict]) -> str:
    """Show every budget with its verdict."""
    rows = [
        (
            f"{TITLES[v.group]}: {v.what}",
            v.limit,
            "-" if v.value is None else around(v.value, v.low, v.high),
            v.verdict,
        )
        for v in verdicts
    ]
    return "Budgets\n\n" + table(("", "budget", "measured (quartiles)", "verdict"), rows)


def heading(results: Results) -> str:
    """Say on what the figures were taken."""
    env = results.environment
    servers = ", ".join(env["servers"].values())
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    machine = f"{env['cpus']} CPUs, load before the run {env['load_before']}"
    text = f"{servers}\nPython {env['python']}, {packages}\n{machine}"
    return text


def doubts(results: Results) -> str:
    """Say what a busy machine has done to the figures; nothing if it was idle."""
    env = results.environment
    if env["load_before"] <= env["cpus"] / 2:
        return ""
    return (
        "\n\nThe machine was busy with something else. Ratios without contention stand, and those of hand-offs unless"
        "\nit was very busy; milliseconds, shares and figures per second belong to an idle machine."
    )
