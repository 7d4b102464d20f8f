"""What the benchmarks do with their samples; the measuring itself has no test but its own checks."""

from __future__ import annotations

import pytest

from benchmarks.budgets import BUDGETS, verdicts
from benchmarks.contended import Contention
from benchmarks.crew import Share
from benchmarks.ratios import Spread, paired, spread
from benchmarks.results import Results
from benchmarks.signups.measure import SignUps
from benchmarks.uncontended import Cost, Uncontended

# of performance.md, where a figure was agreed on
AGREED = {
    ("postgres", "uncontended, x bare"): 0.9,
    ("postgres", "whole atomic(), x bare Django"): 1.0,
    ("postgres", "uncontended asyncio, x sync"): 1.3,
    ("postgres", "hand-offs, x bare"): 0.95,
    ("postgres", "hand-offs, x django-pglock"): 1.8,
    ("postgres", "hand-offs in atomic(), x django-pglock xact"): 1.0,
    ("postgres", "fair"): 0.95,
    ("postgres", "fair in atomic()"): 0.95,
    ("postgres", "worst wait, x bare"): 2.0,
    ("postgres", "sign-ups, x unique constraint"): 0.9,
    ("postgres", "sign-ups, x django-pglock"): 1.0,
    ("postgres", "sign-ups, x django-pglock, xact"): 1.0,
    ("postgres", "sign-ups, x redis-py Lock"): 1.0,
    ("postgres", "sign-ups, x django-redis cache.lock"): 1.0,
    ("postgres", "sign-ups, x python-redis-lock"): 1.0,
    ("postgres", "sign-ups, x kazoo Lock"): 1.0,
    ("mysql", "uncontended, x bare"): 1.1,
    ("mysql", "uncontended asyncio, x sync"): 2.0,
    ("mysql", "hand-offs, x bare"): 0.85,
    ("mysql", "hand-offs, x django-mysql"): 1.3,
    ("mysql", "fair"): 0.95,
    ("mysql", "worst wait, x bare"): 3.0,
    ("mysql", "sign-ups, x unique constraint"): 0.9,
    ("mysql", "sign-ups, x django-mysql"): 1.0,
    ("sqlite", "uncontended, x bare"): 1.5,
    ("sqlite", "uncontended asyncio, x sync"): 4.0,
    ("sqlite", "hand-offs per second"): 4_000,
    ("sqlite", "fair"): 0.95,
    ("sqlite", "worst wait, ms"): 100,
    ("redis", "uncontended, x bare"): 1.1,
    ("redis", "uncontended asyncio, x sync"): 1.3,
    ("redis", "hand-offs, x python-redis-lock"): 1.5,
    ("redis", "fair"): 0.95,
    ("redis", "worst wait, ms"): 50,
    ("redlock", "uncontended, x bare"): 1.0,
    ("redlock", "hand-offs, x pottery"): 2.0,
    ("redlock", "fair"): 0.5,
    ("redlock", "worst wait, ms"): 400,
    ("redlock-far", "uncontended, x bare"): 0.3,
    ("zookeeper", "uncontended, x bare"): 1.3,
    ("zookeeper", "hand-offs, x kazoo Lock"): 1.4,
    ("zookeeper", "fair"): 0.95,
    ("zookeeper", "worst wait, ms"): 100,
}


@pytest.mark.parametrize(("group", "what"), AGREED)
def test_no_budget_is_laxer_than_agreed(group: str, what: str) -> None:
    budget = next(budget for budget in BUDGETS[group] if budget.what == what)
    agreed = AGREED[group, what]
    assert budget.limit <= agreed if budget.at_most else budget.limit >= agreed


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    # the machine became ten times slower after the second round: the medians are 10 and 20, a ratio of a half
    assert paired([10, 10, 1, 1, 10], [20, 5, 0.5, 0.5, 20]) == Spread(2.0, 0.5, 2.0)


def test_a_round_that_one_entry_missed_counts_for_neither() -> None:
    assert paired([4, 4, 400], [2, 2]).median == 2
    assert paired([4, 4], [0, 2]).median == 2


def test_one_round_has_no_spread() -> None:
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="median"):
        spread([])


def test_budgets_are_judged_by_paired_rounds() -> None:
    results = Results({})
    results.contended["mysql"] = [
        Contention("mysql", "bare mysqlclient", True, [10.0, 1000.0, 100.0], [1.0] * 3, [1.0, 2.0, 3.0], [10, 10]),
        Contention("mysql", "django-distlock", True, [9.0, 900.0, 90.0], [1.0] * 3, [4.0, 4.0, 3.0], [10, 9]),
    ]
    found = {verdict.what: verdict for verdict in verdicts(results, ["mysql"])}
    assert found["hand-offs, x bare"].verdict == "ok"
    assert found["hand-offs, x bare"].value == pytest.approx(0.9)
    assert found["worst wait, x bare"].value == 2.0
    assert found["fair"].value == 0.9
    assert found["fair"].verdict == "MISSED by 5%"
    assert found["hand-offs, x django-mysql"].verdict == "NOT MEASURED"


def test_quartiles_are_in_the_results_and_slices_are_not() -> None:
    results = Results({})
    results.uncontended["mysql"] = Uncontended(True, [Cost("mysql", "bare", 1, 2, 3, 1.0, 0.9, 1.1, [1.0, 2.0])])
    (cost,) = results.as_dict()["uncontended"]["mysql"]["costs"]
    assert (cost["ratio"], cost["ratio_low"], cost["ratio_high"]) == (1.0, 0.9, 1.1)
    assert "slices" not in cost


def test_the_turn_that_the_end_of_a_slice_cuts_off_is_not_unfair() -> None:
    row = Contention("zookeeper", "a queue", True)
    row.add([Share(5, 5, 0, 1), Share(5, 4, 0, 1)], 0, 1.0)
    assert row.fair == 1.0
    row.add([Share(5, 5, 0, 1), Share(5, 1, 0, 1)], 0, 1.0)
    assert row.fair == 5 / 8
    assert row.fairs == [1.0, 0.25]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (SignUps("postgres", "lock", True, made=2, rows=2), None),
        (SignUps("postgres", "lock", True, made=2, rows=2, duplicates=1), "1 duplicates"),
        (SignUps("postgres", "lock", True, made=2, rows=3), "2 sign-ups were confirmed, 3 are in the database"),
        (SignUps("postgres", "none", False, made=2, rows=2, duplicates=1), None),
        (SignUps("postgres", "none", False, made=2, rows=2), "no duplicate was made, so the check proves nothing"),
        (SignUps("postgres", "lock", True, error="answers by status: {500: 1}"), "answers by status: {500: 1}"),
    ],
)
def test_a_run_of_sign_ups_with_a_fault_fails(row: SignUps, fault: str | None) -> None:
    results = Results({})
    results.signups["postgres"] = [row]
    assert results.failures() == ([] if fault is None else [f"postgres, sign-ups, {row.entry}: {fault}"])
