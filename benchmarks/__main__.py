"""Run the benchmarks and print their tables: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.results import Results

GROUPS = ("postgres", "mysql", "sqlite", "redis", "redlock", "zookeeper")
PARTS = ("uncontended", "contended")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long to measure."""

    rounds: int  # of slices of 25 pairs
    contended_rounds: int
    seconds: float  # of each slice of a contended entry
    all_entries: bool = True  # also those that no budget names


FULL = Scale(rounds=200, contended_rounds=5, seconds=1.5)
QUICK = Scale(rounds=40, contended_rounds=11, seconds=0.2, all_entries=False)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Locks side by side, as ratios of a run.")
    parser.add_argument("--group", action="append", choices=GROUPS, help="only this engine (may be given again)")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part (may be given again)")
    parser.add_argument("--quick", action="store_true", help="what budgets name, in two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a plot to FILE")
    return parser.parse_args(argv)


def set_up(directory: str) -> None:
    """Configure Django, with a SQLite database of the benchmark's own and a site key that needs no table."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    os.environ.setdefault("DISTLOCK_SITE_KEY", "benchmarks-0123456789-abcdefghijklmnopqrstuv")
    os.environ["DISTLOCK_DEMO_DB"] = str(Path(directory) / "benchmarks.sqlite3")
    os.environ["DB"] = "sqlite"
    django.setup()


def measured(results: Results, group: str, part: str, scale: Scale) -> str:
    """Measure one part of one group and return its table; an error ends the part and not the run."""
    from benchmarks import contended, reason, report, uncontended

    options = {"all_entries": scale.all_entries}
    try:
        if part == "uncontended":
            results.uncontended[group] = uncontended.measure(group, scale.rounds, **options)
            return report.uncontended(group, results.uncontended[group])
        results.contended[group] = contended.measure(group, scale.contended_rounds, scale.seconds, **options)
        return report.contended(group, results.contended[group])
    except Exception as error:
        results.broken.append(f"{group}, {part}: {reason(error)}")
        return results.broken[-1]


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; return 1 if something failed or did not exclude, never because of a time."""
    from benchmarks import budgets, plot, report
    from benchmarks.results import Results, environment
    from benchmarks.servers import SERVERS

    groups = options.group or GROUPS
    versions = {group: f"{report.TITLES[group]} {SERVERS[group].version()}" for group in groups}
    results = Results(environment(versions))
    print(report.heading(results), flush=True)
    for group in groups:
        for part in options.part or PARTS:
            print(f"\n{measured(results, group, part, QUICK if options.quick else FULL)}", flush=True)
    verdicts = budgets.verdicts(results, groups)
    print("\n" + report.budgets(verdicts) + report.doubts(results))
    if options.json:
        plain = results.as_dict() | {"budgets": [dataclasses.asdict(verdict) for verdict in verdicts]}
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(plot.draw(results))
    failures = results.failures()
    for failure in failures:
        print(f"\nFAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run with a directory for SQLite's files that is removed afterwards."""
    options = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="distlock-bench-") as directory:
        set_up(directory)
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
