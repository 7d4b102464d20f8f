"""What ``distlock list`` and ``distlock break`` show of locks."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line

from .text import cells, fitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from django_distlock.records import BackendReport, LockInfo

HEADINGS = ("ALIAS", "NAME", "MODE", "HOLDER", "AGE", "TTL", "FENCE", "WAIT>=")
# What is cut where the terminal is too narrow, and what is left of it at least.
NAME, HOLDER = 1, 3
LEAST = 12
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def as_data(reports: Iterable[BackendReport], now: datetime) -> dict[str, Any]:
    """The document of ``--json``, whose keys stay the same: see docs/operations.md."""
    return {
        "at": now.isoformat(),
        "backends": [
            {
                "alias": report.alias,
                "backend": report.backend,
                "error": report.error,
                "locks": [_lock(info) for info in report.locks],
            }
            for report in reports
        ],
    }


def _lock(info: LockInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "key": info.key,
        "shared": info.shared,
        "holder": info.holder,
        "acquired_at": info.acquired_at and info.acquired_at.isoformat(),
        "expires_at": info.expires_at and info.expires_at.isoformat(),
        "fence": info.fence,
        "waiters_at_least": info.waiters,
        "waiting": list(info.waiting),
        "details": dict(info.details),
    }


def table(reports: Sequence[BackendReport], now: datetime, width: int | None = None) -> str:
    """As wide as the terminal; names and holders are cut if need be."""
    rows = [HEADINGS, *(_row(report.alias, info, now) for report in reports for info in report.locks)]
    lines = _aligned(rows, width or shutil.get_terminal_size().columns) if len(rows) > 1 else ["Nothing is held."]
    lines += [
        f"{one_line(report.alias)}: its locks cannot be listed: {report.error}" for report in reports if report.error
    ]
    return "\n".join(lines)


def _row(alias: str, info: LockInfo, now: datetime) -> tuple[str, ...]:
    kind = info.details.get("kind")
    mode = info.details.get("mode", kind) if kind else "shared" if info.shared else "exclusive"
    return tuple(
        one_line(text)
        for text in (
            alias,
            info.name if info.name is not None else f"key {info.key}",
            mode,
            info.holder or "-",
            _span(now - info.acquired_at if info.acquired_at else None),
            _span(info.expires_at - now if info.expires_at else None),
            "-" if info.fence is None else str(info.fence),
            "-" if info.waiters is None else str(info.waiters),
        )
    )


def _span(span: Any) -> str:
    """Its two largest units; a clock that is behind the server's makes none of it negative."""
    if span is None:
        return "-"
    left, parts = max(0, int(span.total_seconds())), []
    for size, unit in UNITS:
        if left >= size or unit == "s":
            parts.append(f"{left // size}{unit}")
        left %= size
    return "".join(parts[:2])


def _aligned(rows: list[tuple[str, ...]], width: int) -> list[str]:
    sizes = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    over = sum(sizes) + 2 * (len(sizes) - 1) - width
    for column in (HOLDER, NAME):
        cut = max(0, min(over, sizes[column] - LEAST))
        sizes[column], over = sizes[column] - cut, over - cut
    return ["  ".join(map(fitted, row, sizes)).rstrip() for row in rows]


def described(info: LockInfo, now: datetime) -> list[str]:
    """One holder in full, a line for each fact."""
    since = ""
    if info.acquired_at is not None:
        since = f", since {info.acquired_at:%Y-%m-%d %H:%M:%S %Z} ({_span(now - info.acquired_at)})"
    facts = [
        f"{info.backend}: {info.name or f'key {info.key}'}{' (shared)' if info.shared else ''}",
        f"  held by {info.holder or 'unknown'}{since}",
    ]
    if info.fence is not None:
        facts.append(f"  fence {info.fence}")
    if info.waiters is not None:
        facts.append(f"  at least {info.waiters} waiting" + (": " if info.waiting else "") + "; ".join(info.waiting))
    if "pid" in info.details or "connection" in info.details:
        also = info.details.get("also_holds")
        facts.append(
            "  the whole database session is ended, and its transaction rolled back"
            + (f"; it also holds: {also}" if also else "")
        )
    if other := info.details.get("collision"):
        facts.append(f"  another name has the same key, and may be the one that is held: {other}")
    return [one_line(fact) for fact in facts]
