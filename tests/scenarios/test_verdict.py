"""A replay that went wrong must be called so: each rule of the verdict turns red on the fault it is there for."""

from __future__ import annotations

from dataclasses import replace

from testproject.replay.records import Answer, Phase, Replay, Times, WayResult, nearest_rank
from testproject.replay.verdict import problems

GOOD = Phase.of(
    [Answer(201, 0.0, 0.1, process=1), Answer(409, 0.0, 0.2, process=2)], [Answer(200, 0.0, 0.01)], [1], addresses=1
)


def verdict(engine: str = "postgresql", atomic: bool = False, **changes: object) -> list[str]:
    way = WayResult(slug="advisory", title="Advisory lock", prevents=True, rounds=1, identical=GOOD)
    replay = Replay(
        engine=engine,
        engine_name=engine,
        engine_version="1",
        atomic_requests=atomic,
        server_processes=4,
        client_processes=4,
        client_threads=8,
        hash_iterations=1,
        ways=[replace(way, **changes)],
    )
    return list(problems(replay))


def identical(*statuses: int, accounts: int = 1, log_in: int = 200) -> Phase:
    sign_ups = [Answer(status, 0.0, 0.1, process=1) for status in statuses]
    return Phase.of(sign_ups, [Answer(log_in, 0.0, 0.1)], [accounts] if accounts else [], addresses=1)


def test_a_good_replay_has_no_problem() -> None:
    assert verdict() == []
    assert verdict(log_in_while_held=True, distinct=GOOD) == []


def test_a_duplicate_under_a_lock() -> None:
    assert verdict(identical=identical(201, 201, accounts=2)) == ["advisory, identical sign-ups: 1 duplicate accounts."]
    assert verdict(distinct=identical(201, 201, accounts=2)) == ["advisory, distinct sign-ups: 1 duplicate accounts."]


def test_a_server_error() -> None:
    assert verdict(identical=identical(201, 500)) == ["advisory, identical sign-ups: 1 failed request: 500."]


def test_no_answer_at_all() -> None:
    broken = replace(GOOD, failed=1, errors=["0 TimeoutError()"])
    assert verdict(identical=broken) == ["advisory, identical sign-ups: 1 failed request: 0 TimeoutError()."]


def test_a_failed_log_in() -> None:
    assert verdict(identical=identical(201, log_in=500)) == ["advisory, identical sign-ups: 1 failed request: 500."]


def test_a_lost_sign_up_is_excused_only_by_a_503() -> None:
    assert verdict(identical=identical(409, accounts=0)) == [
        "advisory, identical sign-ups: 0 accounts for 1 addresses."
    ]
    assert verdict(identical=identical(503, accounts=0)) == []


def test_a_log_in_that_waited_or_could_not_be_tried() -> None:
    assert verdict(log_in_while_held=False) == ["advisory: a log-in waited for the registration that held the lock."]
    assert verdict(proof_problem="No registration took the lock.") == ["advisory: No registration took the lock."]


def test_a_race_that_did_not_show() -> None:
    shown = "advisory: no duplicate in 1 rounds; the race was not shown."
    assert verdict(prevents=False) == [shown]
    assert verdict(prevents=False, identical=identical(201, 201, accounts=2)) == []
    assert verdict("sqlite", atomic=False, prevents=False) == [shown]
    # There the transaction itself is the lock: no race to show.
    assert verdict("sqlite", atomic=True, prevents=False) == []


def test_figures() -> None:
    assert (GOOD.requests, GOOD.processes, GOOD.seconds, GOOD.per_second) == (2, 2, 0.2, 10.0)
    assert GOOD.sign_ups == Times(count=2, p50=100.0, p99=200.0)
    hundred = [float(value) for value in range(1, 101)]
    assert (nearest_rank(hundred, 0.5), nearest_rank(hundred, 0.99), nearest_rank([], 0.5)) == (50.0, 99.0, None)
