"""Everything one run measured, in one place for the tables, the budgets, the JSON file and the plot."""

from __future__ import annotations

import dataclasses
import os
import platform
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.contended import Contention
    from benchmarks.uncontended import Cost, Uncontended

PACKAGES = (
    "Django",
    "asgiref",
    "psycopg",
    "mysqlclient",
    "redis",
    "kazoo",
    "django-distlock",
    "django-pglock",
    "django-mysql",
    "python-redis-lock",
    "pottery",
    "sherlock",
    "tooz",
)


@dataclass
class Results:
    """The figures by group; a group that was not run is absent."""

    environment: dict[str, Any]
    uncontended: dict[str, Uncontended] = field(default_factory=dict)
    contended: dict[str, list[Contention]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # parts that ended with an error of their own

    def cost(self, group: str, entry: str) -> Cost:
        """Return the uncontended figures of an entry, the bare driver's without one; LookupError if it did not run."""
        for cost in self.uncontended[group].costs:
            if cost.entry == (entry or self.uncontended[group].costs[0].entry):
                return cost
        raise LookupError(self.uncontended[group].failed.get(entry, f"{entry} was not measured"))

    def contention(self, group: str, entry: str) -> Contention:
        """Return the contended figures of an entry; LookupError if it did not run."""
        for row in self.contended[group]:
            if row.entry == entry and row.rates:
                return row
        raise LookupError(f"{entry} was not measured")

    def failures(self) -> list[str]:
        """Say what failed or excluded nobody: these make the program fail, a missed budget does not."""
        found = [*self.broken]
        for group, result in self.uncontended.items():
            found += [f"{group}, {entry}: {reason}" for entry, reason in result.failed.items()]
        for row in (row for rows in self.contended.values() for row in rows):
            if row.error:
                found.append(f"{row.group}, {row.entry}: {row.error}")
            elif row.exclusive and (row.lost or row.overlaps):
                found.append(f"{row.group}, {row.entry}: {row.lost} lost updates, {row.overlaps} overlaps")
            elif not row.exclusive and not row.lost:
                found.append(f"{row.group}, {row.entry}: no update was lost, so the checker proves nothing")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the medians that are computed included."""
        plain = dataclasses.asdict(self)
        for group, rows in self.contended.items():
            for row, target in zip(rows, plain["contended"][group], strict=True):
                if row.rates:
                    target |= {"rate": row.rate, "fair": row.fair, "worst_ms": row.worst_ms}
        for result in plain["uncontended"].values():
            for cost in result["costs"]:
                del cost["slices"]  # hundreds; their quartiles stay
        return plain


def environment(versions: dict[str, str]) -> dict[str, Any]:
    """Describe the machine and what was installed."""
    installed = {found.name: found.version for found in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "servers": versions,
        "packages": {name: installed.get(name, "not installed") for name in PACKAGES},
    }
