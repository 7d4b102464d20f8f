"""The page on performance shows a recorded run as the benchmarks wrote it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from benchmarks.__main__ import GROUPS
from benchmarks.budgets import BUDGETS
from benchmarks.contended import Contention
from benchmarks.entries import GROUPS as ENTRIES
from benchmarks.giving_up import GivingUp
from benchmarks.idle import Idle
from benchmarks.ratios import Spread
from benchmarks.report import TITLES
from benchmarks.results import Results, environment
from benchmarks.servers import SERVERS
from benchmarks.signups.measure import SignUps
from benchmarks.uncontended import Cost, Uncontended
from benchmarks.verdicts import Verdict
from docs._ext import bench_figures
from tests.docs.pages import PAGES, tables

if TYPE_CHECKING:
    from pathlib import Path


def recorded(path: Path) -> Path:
    """What the program writes at its end, for two entries."""
    results = Results(environment({"postgres": "PostgreSQL 15"}))
    results.uncontended["postgres"] = Uncontended(
        True, [Cost("postgres", "bare", 1, 85.0, 90.0, 1.0), Cost("postgres", "a | b", 1, 60.0, 70.0, 0.714)]
    )
    results.contended["postgres"] = [
        Contention("postgres", "bare", True, [4500.0], [0.99], [30.4], [99, 100]),
        Contention("postgres", "none", False, [9e6], [0.5], [1.0], [1, 2]),
        Contention("postgres", "broken", True, error="it failed"),
    ]
    results.idle["postgres"] = [Idle("postgres", "bare", 50, 487.26), Idle("postgres", "broken", 50, error="it failed")]
    results.giving_up["postgres"] = [GivingUp("postgres", "bare", 1.0, 3.42)]
    results.signups["postgres"] = [
        SignUps("postgres", "unique constraint", True, [600.0], ratio=Spread(1.0, 1.0, 1.0)),
        SignUps("postgres", "broken", True, error="it failed"),
    ]
    budgets = [
        Verdict("postgres", "hand-offs", ">= 0.85", 1.19, "ok", 1.1, 1.25),
        Verdict("postgres", "fair", ">= 0.9", None, "NOT MEASURED"),
    ]
    plain = results.as_dict() | {"budgets": [dataclasses.asdict(verdict) for verdict in budgets]}
    path.write_text(json.dumps(plain))
    return path


def test_a_recorded_run_is_shown(tmp_path: Path) -> None:
    text = bench_figures.figures(recorded(tmp_path / "figures.json"))
    assert "PostgreSQL 15; Python" in text
    uncontended, contended, idle, giving_up, signups, budgets = tables(text)
    assert uncontended[1:] == [["bare", "1.00"], [r"a \| b", "0.71"]]
    assert contended[1:] == [["bare", "4,500", "0.99", "30 ms"]]
    assert idle[1:] == [["bare", "487.3"]]
    assert giving_up[1:] == [["bare", "3.42 s"]]
    assert signups[1:] == [["unique constraint", "1.00"]]
    assert budgets[1:] == [["PostgreSQL", "hand-offs", ">= 0.85", "1.19 (1.10-1.25)", "ok"]]
    assert "figures.svg" not in text


def test_a_run_recorded_before_there_were_these_parts_is_shown(tmp_path: Path) -> None:
    path = recorded(tmp_path / "figures.json")
    run = json.loads(path.read_text())
    del run["idle"], run["giving_up"], run["signups"]
    for budget in run["budgets"]:
        del budget["low"], budget["high"]
    path.write_text(json.dumps(run))
    assert len(tables(bench_figures.figures(path))) == 3


def test_every_group_has_a_title_budgets_and_a_server() -> None:
    assert list(TITLES) == list(SERVERS) == list(ENTRIES) == list(BUDGETS) == list(GROUPS)


def test_the_plot_is_shown_if_there_is_one(tmp_path: Path) -> None:
    path = recorded(tmp_path / "figures.json")
    path.with_suffix(".svg").write_text("<svg/>")
    assert "](/figures.svg)" in bench_figures.figures(path)


def test_without_a_run_the_page_says_so(tmp_path: Path) -> None:
    assert bench_figures.figures(tmp_path / "figures.json") == bench_figures.NONE_YET
    assert "```{bench-figures}\n```" in PAGES["docs/performance.md"].read_text()
