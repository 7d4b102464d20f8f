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
    from benchmarks.giving_up import GivingUp
    from benchmarks.growth import Growth
    from benchmarks.idempotency import Request
    from benchmarks.idle import Idle
    from benchmarks.signups.measure import SignUps
    from benchmarks.tasks import Crowd
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
    "django-redis",
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
    tasks: dict[str, Crowd] = field(default_factory=dict)
    growth: dict[str, list[Growth]] = field(default_factory=dict)
    idle: dict[str, list[Idle]] = field(default_factory=dict)
    giving_up: dict[str, list[GivingUp]] = field(default_factory=dict)
    idempotency: dict[str, list[Request]] = field(default_factory=dict)
    editing: dict[str, list[Request]] = field(default_factory=dict)
    browser: dict[str, list[Request]] = field(default_factory=dict)
    signups: dict[str, list[SignUps]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # parts that ended with an error of their own

    def cost(self, group: str, entry: str) -> Cost:
        """Return the uncontended figures of an entry; LookupError if it did not run."""
        for cost in self.uncontended[group].costs:
            if cost.entry == entry:
                return cost
        raise LookupError(self.uncontended[group].failed.get(entry, f"{entry} was not measured"))

    def contention(self, group: str, entry: str) -> Contention:
        """Return the contended figures of an entry; LookupError if it did not run."""
        for row in self.contended[group]:
            if row.entry == entry and row.rates:
                return row
        raise LookupError(f"{entry} was not measured")

    def waiting(self, group: str, entry: str) -> Idle:
        """Return what idle waiters of an entry sent; LookupError if it did not run."""
        for row in self.idle[group]:
            if row.entry == entry and not row.error:
                return row
        raise LookupError(f"{entry} was not measured")

    def given_up(self, group: str, entry: str) -> GivingUp:
        """Return how long the wait of an entry took; LookupError if it did not run."""
        for row in self.giving_up[group]:
            if row.entry == entry and not row.error:
                return row
        raise LookupError(f"{entry} was not measured")

    def crowd(self, group: str) -> Crowd:
        """Return what the tasks of one process got; LookupError if none got anything."""
        if not self.tasks[group].served:
            raise LookupError(f"no task was served: {self.tasks[group].error}")
        return self.tasks[group]

    def signed_up(self, group: str, entry: str) -> SignUps:
        """Return the sign-ups of an entry; LookupError if it did not run."""
        for row in self.signups[group]:
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
        for crowd in self.tasks.values():
            if crowd.error or crowd.errors or crowd.overlaps or crowd.served < crowd.tasks:
                found.append(
                    f"{crowd.group}, asyncio: {crowd.served} of {crowd.tasks} tasks served, {crowd.overlaps} overlaps,"
                    f" errors {crowd.errors} {crowd.error}"
                )
        found += [
            f"{row.group}, {row.held} locks held by {row.where}: {row.error}"
            for rows in self.growth.values()
            for row in rows
            if row.error
        ]
        for part in (self.idle, self.giving_up):
            found += [f"{row.group}, {row.entry}: {row.error}" for rows in part.values() for row in rows if row.error]
        for row in (row for rows in self.signups.values() for row in rows):
            found += [f"{row.group}, sign-ups, {row.entry}: {fault}" for fault in row.faults()]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the medians that are computed included."""
        plain = dataclasses.asdict(self)
        for group, rows in self.contended.items():
            for row, target in zip(rows, plain["contended"][group], strict=True):
                if row.rates:
                    target |= {"rate": row.rate, "fair": row.fair, "worst_ms": row.worst_ms}
        for group, rows in self.signups.items():
            for row, target in zip(rows, plain["signups"][group], strict=True):
                if row.rates:
                    target["rate"] = row.rate
        for result in plain["uncontended"].values():
            for cost in result["costs"]:
                del cost["slices"]  # hundreds; their quartiles stay
        return plain


def environment(versions: dict[str, str]) -> dict[str, Any]:
    """Describe the machine and what was installed."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "servers": versions,
        "packages": packages,
    }
