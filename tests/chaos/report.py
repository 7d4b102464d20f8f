"""The table at the end of a run: one part for each engine, and what could not be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.run import Result

COLUMNS = ("engine", "seconds", "holds", "faults", "overlaps", "leaks", "losses told", "fences", "longest wait", "harm")
NOT_DONE = (
    "Not done: steps of the system's clock and full disks, which would hit the whole machine; failovers, since each "
    "server here is alone. SQLite has no server, so its faults are those of processes. ZooKeeper's sessions end by a "
    "silence that is longer than they last."
)
MOST = 5  # complaints that are shown of an engine


def table(results: Sequence[Result]) -> str:
    rows = [COLUMNS, *map(row, results)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.append("")
    lines += [f"{result.using}: {counted(result.faults)}; errors told: {counted(result.errors)}" for result in results]
    lines += ["", NOT_DONE]
    for result in results:
        complaints = result.complaints
        lines += [f"{result.using}: {complaint}" for complaint in complaints[:MOST]]
        if len(complaints) > MOST:
            lines.append(f"{result.using}: and {len(complaints) - MOST} more")
    return "\n".join(lines)


def row(result: Result) -> tuple[str, ...]:
    fences = "none" if not result.fenced else f"{len(result.sinking)} sank" if result.sinking else "rising"
    told = f"{result.losses} of {result.losses + len(result.untold)}"
    return (
        result.using,
        f"{result.seconds:.0f}",
        f"{len(result.holds):,}",
        f"{sum(result.faults.values()):,}",
        str(len(result.overlaps)),
        str(len(result.leaks)),
        told,
        fences,
        f"{result.longest_wait:.1f} s",
        str(sum(result.harm.values())),
    )


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"
