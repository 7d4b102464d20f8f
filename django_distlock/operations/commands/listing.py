"""``manage.py distlock list``: what is held now, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django_distlock import held_locks
from django_distlock.concurrency.text import one_line

from .base import EX_UNAVAILABLE, Subcommand, aligned, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.core.management.base import CommandParser

    from django_distlock import BackendReport, LockInfo

WATCH = 2.0
HOME_AND_CLEAR = "\x1b[H\x1b[2J"
HEADINGS = ("ALIAS", "NAME", "MODE", "HOLDER", "AGE", "TTL", "FENCE", "WAIT>=")
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class List(Subcommand):
    help = "List the locks that are held, by any process."
    description = (
        "A table in a terminal, JSON elsewhere. A line names each backend that does not answer. Exit status: 0; "
        "69 if --using names a backend that does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="JSON also in a terminal")
        form.add_argument("--table", action="store_true", help="a table also in a pipe")
        parser.add_argument(
            "--watch",
            nargs="?",
            type=number(positive=True),
            const=WATCH,
            metavar="SECONDS",
            help=f"repeat every SECONDS ({WATCH:g}) until Ctrl-C; JSON is then one line each time",
        )

    def run(self, **options: Any) -> int:
        using, watch = options["using"], options["watch"]
        try:
            reports = self._show(using, options)
            while watch is not None:
                time.sleep(watch)
                self._show(using, options)
        except KeyboardInterrupt:
            if watch is None:
                raise
            return 0
        except BrokenPipeError:  # the reader has ended; at its exit the interpreter would report it again
            if vars(self.stdout)["_out"] is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return EX_UNAVAILABLE if using is not None and reports[0].error else 0

    def _show(self, using: str | None, options: dict[str, Any]) -> list[BackendReport]:
        reports, now, watch = held_locks(using), datetime.now(UTC), options["watch"] is not None
        terminal = self.stdout.isatty()
        if options["table"] or (terminal and not options["json"]):
            text = (HOME_AND_CLEAR if watch and terminal else "") + table(reports, now)
        else:
            text = json.dumps(as_data(reports, now), indent=None if watch else 2)
        self.say(text)
        self.stdout.flush()
        return reports


def as_data(reports: Iterable[BackendReport], now: datetime) -> dict[str, Any]:
    """The document of ``--json``. Programs rely on its keys: see docs/operations.md."""
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


def table(reports: Sequence[BackendReport], now: datetime) -> str:
    """The locks of all aliases, a line for each."""
    rows = [HEADINGS, *(_row(report.alias, info, now) for report in reports for info in report.locks)]
    lines = aligned(rows) if len(rows) > 1 else ["Nothing is held."]
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
    """The two largest units. Never negative: the clock of this host may be behind the server's."""
    if span is None:
        return "-"
    left, parts = max(0, int(span.total_seconds())), []
    for size, unit in UNITS:
        if left >= size or unit == "s":
            parts.append(f"{left // size}{unit}")
        left %= size
    return "".join(parts[:2])


def described(info: LockInfo, now: datetime) -> list[str]:
    """Everything about one holder, in lines."""
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
            "  breaking it ends the whole database session and rolls its transaction back"
            + (f"; it also holds: {also}" if also else "")
        )
    return [one_line(fact) for fact in facts]
