"""What a replay measured: plain values that cross processes and become JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP exchange, sent at `started` (monotonic clock) and answered `seconds` later by a server process.

    `status` 0 means that no answer came, and `error` says why.
    """

    status: int
    started: float
    seconds: float
    process: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Milliseconds from request to answer, of `count` requests; None where there was none."""

    count: int
    p50: float | None
    p99: float | None

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Self:
        ordered = sorted(answer.seconds * 1000 for answer in answers)
        return cls(count=len(ordered), p50=nearest_rank(ordered, 0.50), p99=nearest_rank(ordered, 0.99))


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One burst of sign-ups through one way.

    `duplicates` are accounts beyond the first of an address; `failed` counts the sign-ups and log-ins without a proper
    answer, and `errors` has each kind of failure once; `processes` is how many server processes answered.
    """

    requests: int
    addresses: int
    accounts: int
    duplicates: int
    statuses: dict[str, int]
    failed: int
    errors: list[str]
    processes: int
    seconds: float
    per_second: float
    sign_ups: Times
    log_ins: Times

    @classmethod
    def of(
        cls, sign_ups: Sequence[Answer], log_ins: Sequence[Answer], counts: Iterable[int], *, addresses: int
    ) -> Self:
        """`counts` is the number of accounts of each address that has any."""
        made, seconds = list(counts), span(sign_ups)
        failed = [answer for answer in sign_ups if is_failure(answer, (201, 409, 503))]
        failed += [answer for answer in log_ins if is_failure(answer, (200,))]
        return cls(
            requests=len(sign_ups),
            addresses=addresses,
            accounts=sum(made),
            duplicates=sum(count - 1 for count in made),
            statuses=dict(sorted(Counter(str(answer.status) for answer in sign_ups).items())),
            failed=len(failed),
            errors=sorted({f"{answer.status} {answer.error}".strip() for answer in failed}),
            processes=len({answer.process for answer in sign_ups} - {None}),
            seconds=round(seconds, 3),
            per_second=round(len(sign_ups) / seconds, 1),
            sign_ups=Times.of(sign_ups),
            log_ins=Times.of(log_ins),
        )


def span(answers: Sequence[Answer]) -> float:
    """Seconds from the first request to the last answer; the monotonic clock is one for all processes of a machine."""
    return max(answer.started + answer.seconds for answer in answers) - min(answer.started for answer in answers)


def is_failure(answer: Answer, expected: tuple[int, ...]) -> bool:
    return answer.status not in expected


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """One way's outcome.

    `log_in_while_held` is None where there is no lock to log in under, or where it could not be tried: then
    `proof_problem` says why.
    """

    slug: str
    title: str
    prevents: bool
    rounds: int
    identical: Phase
    distinct: Phase | None = None
    log_in_while_held: bool | None = None
    proof_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    atomic_requests: bool
    server_processes: int
    client_processes: int
    client_threads: int
    hash_iterations: int
    ways: list[WayResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
