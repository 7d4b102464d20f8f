"""The table of mutants in Markdown, from the JSON that `make mutants ARGS="--record"` writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NONE_YET = 'No run is recorded with this documentation. `make mutants ARGS="--record"` records one.'


def mutants(path: Path) -> str:
    """The faults with the tests that noticed them; a sentence if no run is recorded."""
    if not path.exists():
        return NONE_YET
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    days = sorted({entry["day"] for entry in entries})
    minutes = sum(entry["seconds"] for entry in entries) / 60
    lines = [
        f"{len(entries)} faults, run on {' and '.join(days)} in {minutes:.0f} minutes; each was noticed.",
        "",
        "| fault | breaks | noticed by |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {entry['title']} | {entry['rule']} | `{_cell(entry['test'])}` |" for entry in entries]
    return "\n".join(lines)


def _cell(test: str) -> str:
    """The test without the folder that all tests are in."""
    return test.removeprefix("tests/").replace("|", r"\|")
