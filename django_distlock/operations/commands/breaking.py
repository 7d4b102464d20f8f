"""``manage.py distlock break NAME``: take a lock away from its holder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from django_distlock import BackendUnavailable, break_lock, held_locks
from django_distlock.concurrency.text import one_line
from django_distlock.operations.lookup import held_by_name

from .base import FAILED, WRONG_ARGUMENTS, Subcommand, confirmed, user
from .listing import described

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.management.base import CommandParser

    from django_distlock.records import BackendReport, LockInfo


class Break(Subcommand):
    help = "Take a lock away from its holder, which learns that it has lost it."
    description = (
        "Shows the holder and the waiters, and asks for confirmation. Exit status: 0 if the lock was broken; 1 if it "
        "is not held, has changed hands, or you said no; 69 if its server does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", help="the name of the lock")
        parser.add_argument("--key", help="the key of the lock, as `list` shows it, instead of its name")
        parser.add_argument("--using", metavar="ALIAS", help="one alias in DISTLOCK instead of all")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--all", action="store_true", help="break all of several holders")
        which.add_argument("--holder", type=int, metavar="N", help="break the N-th of several holders")
        parser.add_argument("--reason", default="", help="why, for the log and the signal")

    def run(self, **options: Any) -> int:
        if (options["name"] is None) == (options["key"] is None):
            raise CommandError("Give the name of the lock, or --key.", returncode=WRONG_ARGUMENTS)
        found = self._found(**options)
        if not found:
            self.stderr.write(f"The lock '{one_line(options['name'] or options['key'])}' is not held.")
            return FAILED
        now = datetime.now(UTC)
        for number, info in enumerate(found, 1):
            lines = described(info, now)
            for line in [f"{number}. {lines[0]}" if len(found) > 1 else lines[0], *lines[1:]]:
                self.say(line)
        chosen = self._chosen(found, options["all"], options["holder"])
        if not options["yes"] and not confirmed(f"Break {'it' if len(chosen) == 1 else f'all {len(chosen)}'}?"):
            self.stderr.write("Nothing was broken.")
            return FAILED
        reason = f"manage.py distlock break by {user()}" + (f": {options['reason']}" if options["reason"] else "")
        return max([self._break(info, reason) for info in chosen])

    def _found(self, *, name: str | None, key: str | None, using: str | None, **options: Any) -> list[LockInfo]:
        reports: Iterable[BackendReport] = held_locks(using) if name is None else held_by_name(name, using)
        found: list[LockInfo] = []
        for report in reports:
            if report.error is not None:
                message = f"The locks of alias {report.alias!r} cannot be listed: {report.error}."
                if using is not None:
                    raise BackendUnavailable(message)
                self.stderr.write(message)
            found += [info for info in report.locks if key is None or info.key == key]
        return found

    @staticmethod
    def _chosen(found: list[LockInfo], every: bool, number: int | None) -> list[LockInfo]:
        if every or (number is None and len(found) == 1):
            return found
        if number is None:
            text = "There are several holders: choose one with --holder N, or --all."
            raise CommandError(text, returncode=WRONG_ARGUMENTS)
        if not 1 <= number <= len(found):
            text = f"--holder must be between 1 and {len(found)}, not {number}."
            raise CommandError(text, returncode=WRONG_ARGUMENTS)
        return [found[number - 1]]

    def _break(self, info: LockInfo, reason: str) -> int:
        what = one_line(f"{info.name or info.key}")
        if break_lock(info, reason=reason):
            self.say(f"Broken: {what}, held by {one_line(info.holder or 'unknown')}.")
            return 0
        self.stderr.write(f"The lock '{what}' has changed hands or was released; it was not broken.")
        return FAILED
