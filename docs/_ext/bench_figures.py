"""The tables of a benchmark run in Markdown, from the JSON of `make bench ARGS="--json docs/figures.json"`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.report import TITLES, around

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NONE_YET = (
    "No run is recorded with this documentation. A run on a machine that does nothing else is recorded by\n"
    '`make bench ARGS="--json docs/figures.json --svg docs/figures.svg"`.'
)


def figures(path: Path) -> str:
    """Everything that is shown of one run; a sentence if none is recorded."""
    if not path.exists():
        return NONE_YET
    run = json.loads(path.read_text())
    parts = [_origin(run["environment"])]
    if path.with_suffix(".svg").exists():
        parts.append(f"![cost and hand-overs of each entry](/{path.with_suffix('.svg').name})")
    for group, title in TITLES.items():
        if group in run["uncontended"]:
            parts += [f"**{title}, nobody else wants the lock**", _uncontended(run["uncontended"][group])]
        if group in run["contended"]:
            parts += [f"**{title}, eight processes want one lock**", _contended(run["contended"][group])]
    parts += ["**Budgets**", _budgets(run["budgets"])]
    return "\n\n".join(parts)


def _origin(environment: dict[str, Any]) -> str:
    packages = ", ".join(
        f"{name} {version}" for name, version in environment["packages"].items() if version != "not installed"
    )
    return (
        f"{', '.join(environment['servers'].values())}; Python {environment['python']}, {packages}; "
        f"{environment['cpus']} CPUs, load before the run {environment['load_before']}."
    )


def _uncontended(result: dict[str, Any]) -> str:
    """Ratios only: microseconds belong to the machine that measured them."""
    rows = [(cost["entry"], f"{cost['ratio']:.2f}") for cost in result["costs"]]
    return _table(("entry", "cost of a pair over the bare driver's"), rows)


def _contended(entries: list[dict[str, Any]]) -> str:
    rows = [
        (entry["entry"], f"{entry['rate']:,.0f}", f"{entry['fair']:.2f}", f"{entry['worst_ms']:,.0f} ms")
        for entry in entries
        if entry["exclusive"] and entry["rates"]
    ]
    return _table(("entry", "hand-overs per second", "smallest share / largest", "longest wait"), rows)


def _budgets(budgets: list[dict[str, Any]]) -> str:
    rows = [
        (
            TITLES[row["group"]],
            row["what"],
            row["limit"],
            around(row["value"], row.get("low"), row.get("high")),
            row["verdict"],
        )
        for row in budgets
        if row["value"] is not None
    ]
    return _table(("engine", "figure", "budget", "measured", "verdict"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
