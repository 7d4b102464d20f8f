"""What a replay measured: plain values that become JSON, and what must hold of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from testproject.replay.tables import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """`sold` units of `stock`; `left` is the stock at the end, `late` how many writes of a lost lease were refused, and
    `rounds` how often it was tried until the fault of a way without a promise was seen."""

    slug: str
    title: str
    prevents: bool
    rounds: int
    stock: int
    sold: int
    left: int
    late: int
    seconds: float
    per_second: float
    errors: list[str]

    @property
    def oversold(self) -> int:
        return max(0, self.sold - self.stock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    workers: int
    using: str
    ways: list[WayResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        ways = [asdict(way) | {"oversold": way.oversold} for way in self.ways]
        return asdict(self) | {"ways": ways}


def problems(ways: list[WayResult], paused: set[str]) -> Iterator[str]:
    """Everything that is not as promised; `paused` are the slugs of the ways in which a worker was stopped."""
    for way in ways:
        yield from (f"{way.slug}: {error}" for error in way.errors)
        if not way.prevents:
            if not way.oversold:
                yield f"{way.slug}: nothing was sold twice in {way.rounds} rounds; the fault was not shown."
            continue
        if (way.sold, way.left) != (way.stock, 0):
            yield f"{way.slug}: {way.sold} units of {way.stock} sold, {way.left} left."
        if way.slug in paused and not way.late:
            yield f"{way.slug}: the worker that slept was not refused."


def table(ways: list[WayResult]) -> str:
    """The figures as a table for a terminal."""
    rows = [(way.slug, way.stock, way.sold, way.oversold, way.left, way.late, way.per_second) for way in ways]
    return as_table([("way", "stock", "sold", "too many", "left", "late refused", "per s"), *rows])


def story(ways: list[WayResult]) -> Iterator[str]:
    """What happened, one sentence per way."""
    for way in ways:
        extra = f", {way.oversold} too many" if way.oversold else ""
        late = f"; {way.late} late write refused" if way.late else ""
        yield f"{way.title}: {way.sold} of {way.stock} sold{extra}, {way.left} left{late}."
