"""What a replay measured: plain values that become JSON, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from testproject.replay.records import span
from testproject.replay.tables import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .clicks import Answer

PLACED, BUSY = (201, 302), 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One request, sent `requests` times at once, as a form or to the API. `orders` were made, `first` answers were a
    view's own and `replayed` ones stored; `wrong` are those that neither name the order nor say that it is being made.
    """

    kind: str
    requests: int
    orders: int
    payments: int
    first: int
    replayed: int
    busy: int
    statuses: dict[str, int]
    wrong: int
    errors: list[str]
    seconds: float

    @property
    def duplicates(self) -> int:
        return max(0, self.orders - 1)

    @classmethod
    def of(cls, kind: str, answers: Sequence[Answer], orders: dict[str, str]) -> Self:
        """`orders`: the address of each order that was made, and its payment."""
        placed = [answer for answer in answers if answer.status in PLACED and answer.location in orders]
        busy = sum(answer.status == BUSY for answer in answers)
        wrong = [answer for answer in answers if answer not in placed and answer.status != BUSY]
        return cls(
            kind=kind,
            requests=len(answers),
            orders=len(orders),
            payments=len(set(orders.values())),
            first=sum(not answer.replayed for answer in placed),
            replayed=sum(answer.replayed for answer in placed),
            busy=busy,
            statuses=dict(sorted(Counter(answer.label for answer in answers).items())),
            wrong=len(wrong),
            errors=sorted({f"{answer.status} {answer.error}".strip() for answer in wrong}),
            seconds=round(span(answers), 3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    slug: str
    title: str
    prevents: bool
    phases: list[Phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    server_processes: int
    payment_seconds: float
    ways: list[WayResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        for way, shown in zip(self.ways, found["ways"], strict=True):
            for phase, told in zip(way.phases, shown["phases"], strict=True):
                told["duplicates"] = phase.duplicates
        return found


def problems(ways: list[WayResult]) -> Iterator[str]:
    """Everything that is not as promised; empty when the replay is good."""
    for way in ways:
        for phase in way.phases:
            yield from (f"{way.slug}, {phase.kind}: {problem}" for problem in phase_problems(way, phase))


def phase_problems(way: WayResult, phase: Phase) -> Iterator[str]:
    if phase.wrong:
        yield f"{phase.wrong} of {phase.requests} answers are wrong: {', '.join(phase.errors)}."
    if not way.prevents:
        if not phase.duplicates:
            yield f"{phase.requests} requests made {phase.orders} orders; the fault was not shown."
    elif (phase.orders, phase.payments, phase.first) != (1, 1, 1):
        yield (
            f"{phase.requests} requests made {phase.orders} orders with {phase.payments} payments, and {phase.first} "
            "of them ran the view."
        )


def table(ways: list[WayResult]) -> str:
    """The figures as a table for a terminal."""
    head = ("way", "sent as", "requests", "orders", "too many", "payments", "answers", "wrong", "s")
    rows = [
        (
            *(way.slug, phase.kind, phase.requests, phase.orders, phase.duplicates, phase.payments),
            *(" ".join(f"{label}:{count}" for label, count in phase.statuses.items()), phase.wrong, phase.seconds),
        )
        for way in ways
        for phase in way.phases
    ]
    return as_table([head, *rows])


def story(ways: list[WayResult]) -> Iterator[str]:
    """What happened, one sentence per way."""
    for way in ways:
        told = [
            f"{phase.requests} times the same {phase.kind} made {phase.orders} order{'s' if phase.orders != 1 else ''}"
            for phase in way.phases
        ]
        yield f"{way.title}: {', '.join(told)}."
