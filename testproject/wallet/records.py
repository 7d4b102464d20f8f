"""What a wallet replay measured, and what must hold of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from testproject.replay.tables import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testproject.replay.records import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """`count` accounts of 1000, from each of which 600 and 700 were withdrawn at once: how often both or neither were
    paid, and how often the balance does not fit what was paid."""

    count: int
    both: int
    neither: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """`drift` is the money that `count` transfers made, or lost if below zero; `done` of them found enough of it."""

    count: int
    done: int
    drift: int
    per_second: float
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """One way's outcome; `failed` counts requests without a proper answer, and `errors` has each kind once."""

    slug: str
    title: str
    prevents: bool
    rounds: int
    pairs: Pairs
    transfers: Transfers
    look_ups: Times
    failed: int
    errors: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    server_processes: int
    client_processes: int
    client_threads: int
    ways: list[WayResult]
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def problems(ways: list[WayResult]) -> Iterator[str]:
    """Everything that is not as promised; empty when the replay is good."""
    for way in ways:
        if way.errors and way.prevents:
            yield f"{way.slug}: {way.failed} failed: {', '.join(way.errors)}."
        if way.prevents and (way.pairs.both or way.pairs.neither or way.pairs.wrong):
            told = f"{way.pairs.both} were both paid, {way.pairs.neither} neither, {way.pairs.wrong} balances are wrong"
            yield f"{way.slug}: of {way.pairs.count} pairs {told}."
        if way.prevents and way.transfers.drift:
            yield f"{way.slug}: the transfers made {way.transfers.drift}."
        if not way.prevents and not (way.pairs.both or way.transfers.drift):
            yield f"{way.slug}: nothing went wrong in {way.rounds} rounds; the race was not shown."


def table(replay: Replay) -> str:
    """The figures as a table for a terminal."""
    rows: list[tuple[object, ...]] = [
        ("way", "pairs", "both", "neither", "transfers", "done", "made", "failed", "per s", "transfer ms", "look-up ms")
    ]
    for way in replay.ways:
        times, looks = way.transfers.times, way.look_ups
        cells = (
            *(way.slug, way.pairs.count, way.pairs.both, way.pairs.neither),
            *(way.transfers.count, way.transfers.done, way.transfers.drift, way.failed, way.transfers.per_second),
            *(f"p50 {times.p50} p99 {times.p99}", f"p50 {looks.p50} p99 {looks.p99}"),
        )
        rows.append(cells)
    return as_table(rows)
