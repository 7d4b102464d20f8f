"""The results of the last recorded run, which docs/proof.md shows."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.support.paths import ROOT

from .catalog import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .runner import Outcome

PATH = ROOT / "docs" / "mutants.json"


def recorded() -> list[dict[str, Any]]:
    """One entry for each fault that was noticed: title, rule, file, test, seconds, day, Python."""
    found: list[dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else []
    return found


def record(outcomes: Iterable[Outcome]) -> None:
    """Bring the entries of these faults up to date, and drop those of faults that there are no more."""
    entries = {entry["title"]: entry for entry in recorded()}
    for outcome in outcomes:
        mutant = outcome.mutant
        entries.pop(mutant.title, None)
        if outcome.caught_by:
            entries[mutant.title] = {
                "title": mutant.title,
                "rule": mutant.rule,
                "file": mutant.path,
                "test": outcome.caught_by,
                "seconds": round(outcome.seconds, 1),
                "day": f"{datetime.now(UTC):%Y-%m-%d}",
                "python": platform.python_version(),
            }
    kept = [entries[mutant.title] for mutant in MUTANTS if mutant.title in entries]
    PATH.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
