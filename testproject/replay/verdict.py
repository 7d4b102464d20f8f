"""What must hold after a replay, and the same in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Phase, Replay, WayResult


def race_is_possible(engine: str, atomic_requests: bool) -> bool:
    """Whether requests without a lock can overtake each other at all.

    With ATOMIC_REQUESTS on SQLite, and transactions that begin with BEGIN IMMEDIATE as in these settings, the whole
    request holds the one write lock that a SQLite file has: there is no race to show.
    """
    return not (engine == "sqlite" and atomic_requests)


def problems(replay: Replay) -> Iterator[str]:
    """Everything that is not as promised; empty when the replay is good."""
    for way in replay.ways:
        for name, phase in (("identical", way.identical), ("distinct", way.distinct)):
            if phase is not None:
                yield from (f"{way.slug}, {name} sign-ups: {problem}" for problem in phase_problems(way, phase))
        if way.proof_problem:
            yield f"{way.slug}: {way.proof_problem}"
        if way.log_in_while_held is False:
            yield f"{way.slug}: a log-in waited for the registration that held the lock."
        if not way.prevents and race_is_possible(replay.engine, replay.atomic_requests) and shows_nothing(way):
            yield f"{way.slug}: no duplicate in {way.rounds} rounds; the race was not shown."


def shows_nothing(way: WayResult) -> bool:
    return way.identical.duplicates == 0


def phase_problems(way: WayResult, phase: Phase) -> Iterator[str]:
    if phase.errors:
        yield f"{count(phase.failed, 'failed request')}: {', '.join(phase.errors)}."
    if way.prevents and phase.duplicates:
        yield f"{phase.duplicates} duplicate accounts."
    # A sign-up that was told to come back later (503) is the only excuse for an address without an account.
    refused = phase.statuses.get("503", 0)
    if way.prevents and phase.accounts < phase.addresses - refused:
        yield f"{phase.accounts} accounts for {phase.addresses} addresses."


def table(replay: Replay) -> str:
    """The figures as a table for a terminal."""
    header = ("way", "sign-ups", "accounts", "duplicates", "answers", "failed", "sign-up ms", "log-in ms", "per s")
    rows = [header]
    for way in replay.ways:
        for name, phase in (("identical", way.identical), ("distinct", way.distinct)):
            if phase is not None:
                rows.append((way.slug, f"{phase.requests} {name}", *figures(phase)))
    return as_table(rows)


def figures(phase: Phase) -> tuple[str, ...]:
    answers = " ".join(f"{status}:{count}" for status, count in phase.statuses.items())
    return (
        str(phase.accounts),
        str(phase.duplicates),
        answers,
        str(phase.failed),
        f"p50 {phase.sign_ups.p50} p99 {phase.sign_ups.p99}",
        f"p50 {phase.log_ins.p50} p99 {phase.log_ins.p99}",
        str(phase.per_second),
    )


def story(replay: Replay) -> Iterator[str]:
    """What happened, one sentence per way."""
    for way in replay.ways:
        phase = way.identical
        made = f"{phase.requests} identical sign-ups made {count(phase.accounts, 'account')}"
        extra = f", {phase.duplicates} too many" if phase.duplicates else ""
        extra += f"; {count(phase.failed, 'request')} failed" if phase.failed else ""
        yield f"{way.title}: {made}{extra}.{log_in_sentence(way)}"
    if not race_is_possible(replay.engine, replay.atomic_requests):
        yield (
            "With ATOMIC_REQUESTS on SQLite every request holds the database's write lock from its first statement "
            "(BEGIN IMMEDIATE), so the race cannot happen here even without a lock."
        )


def log_in_sentence(way: WayResult) -> str:
    busiest = way.distinct or way.identical
    proof = ", and one was answered while a registration held the lock" if way.log_in_while_held else ""
    return f" Log-ins meanwhile took {busiest.log_ins.p50:.0f} ms (median){proof}."


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
