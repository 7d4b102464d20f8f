"""What a replay measured: plain values that become JSON, and what must hold of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Seconds after the end of its lock within which another copy must lead.
ALLOWED = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """`slots` were due and `jobs` were run; `twice` slots more than once, `missed` not at all. `takeover`: seconds from
    the kill of a leader until another one led. `slept`: was a leader put to sleep beyond the end of its lease?
    `late`: writes of one that had slept, and that were refused."""

    slug: str
    title: str
    prevents: bool
    slots: int
    jobs: int
    twice: int
    missed: int
    takeover: float | None
    slept: bool
    late: int
    errors: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    using: str
    copies: int
    ttl: float | None
    ways: list[WayResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def problems(ways: list[WayResult], outlived: float) -> Iterator[str]:
    """Everything that is not as promised. ``outlived``: for how many seconds its lock may outlive a leader."""
    for way in ways:
        yield from (f"{way.slug}: {error}" for error in way.errors)
        if way.missed:
            yield f"{way.slug}: {way.missed} slots were not run."
        if way.takeover is not None and way.takeover > outlived + ALLOWED:
            yield f"{way.slug}: nobody led for {way.takeover:.1f} s after the leader was killed."
        if way.prevents and way.twice:
            yield f"{way.slug}: {way.twice} slots were run twice."
        if way.prevents and way.slept and not way.late:
            yield f"{way.slug}: the leader that slept was not refused."
        if not way.prevents and not way.twice:
            yield f"{way.slug}: no slot was run twice; the fault was not shown."


def table(ways: list[WayResult]) -> str:
    """The figures as a table for a terminal."""
    rows: list[tuple[str, ...]] = [("way", "slots", "jobs", "twice", "missed", "takeover s", "late refused")]
    for way in ways:
        takeover = "-" if way.takeover is None else f"{way.takeover:.2f}"
        rows.append(
            (way.slug, *(str(n) for n in (way.slots, way.jobs, way.twice, way.missed)), takeover, str(way.late))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def story(ways: list[WayResult]) -> Iterator[str]:
    """What happened, one sentence per way."""
    for way in ways:
        killed = "" if way.takeover is None else f"; another one led {way.takeover:.2f} s after the leader was killed"
        late = f"; {way.late} late write refused" if way.late else ""
        yield f"{way.title}: {way.slots} slots, {way.twice} of them run twice{killed}{late}."
