"""``manage.py distlock migrate``: Django's ``migrate``, by one process at a time."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_distlock import BackendUnavailable, LockLost
from django_distlock.concurrency import clock
from django_distlock.concurrency.text import one_line
from django_distlock.operations.lookup import held_by_name
from django_distlock.operations.migration_lock import migration_lock

from .base import EX_TEMPFAIL, EX_UNAVAILABLE, Subcommand, number

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_distlock import Lease, Lock

# Seconds between two attempts, and between two messages that name the holder.
#
# The lock is polled and not queued for: on PostgreSQL CREATE INDEX CONCURRENTLY waits for every statement that runs, so
# the migration would wait for the processes that wait for it.
PAUSE, NEWS = 0.5, 10.0
# Seconds for which the server may not answer: it may be busy or starting.
SILENCE = 10.0
NO_TABLES = (
    "Before the first migrate the tables of this backend are missing: leave out --using, or name an alias with another "
    "backend."
)


class Migrate(Subcommand):
    help = "Run Django's migrate in one process at a time."
    description = (
        "Takes all options of migrate. A second process waits, says for which one, and then finds nothing to do. The "
        "lock belongs to the database that is migrated and needs no table. Exit status: that of migrate; 75 after "
        "--timeout; 69 if the lock's server does not answer for 10 s, or if the lock was lost."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        migrate = _migrate()
        if migrate.requires_system_checks:
            parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")
        migrate.add_arguments(parser)
        parser.add_argument(
            "--using", metavar="ALIAS", help="an alias in DISTLOCK instead of locks of the migrated database"
        )
        parser.add_argument(
            "--timeout",
            type=number(none=True),
            metavar="S",
            help='seconds to wait for the lock (default: "none", for ever)',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run migrate with the lock that :meth:`run` has acquired; what it raises is no answer to our arguments."""
        super().handle(*args, **options)
        lost = "The lock was lost: another process may run migrate at the same time."
        self._lease.on_lost(lambda _: self.stderr.write(lost))
        try:
            _migrate().execute(**options)
        except BaseException:
            self._lease.release()
            raise
        try:
            self._lease.release()
        except (LockLost, BackendUnavailable) as error:
            self.stderr.write(str(error))
            sys.exit(EX_UNAVAILABLE)

    def run(self, **options: Any) -> int:
        lock = migration_lock(options["database"], options["using"])
        lease = self._acquire(lock, options["timeout"])
        if lease is None:
            return EX_TEMPFAIL
        self._lease = lease
        return 0

    def _acquire(self, lock: Lock, timeout: float | None) -> Lease | None:
        began = news_at = answered = clock.now()
        while True:
            try:
                lease = lock.try_acquire()
                answered = clock.now()
            except BackendUnavailable as error:
                if "does not exist" in str(error):
                    raise BackendUnavailable(f"{error} {NO_TABLES}") from error.__cause__
                if clock.now() >= answered + SILENCE:
                    raise
                time.sleep(PAUSE)
                continue
            if lease is not None:
                return lease
            if timeout is not None and answered - began >= timeout:
                self.stderr.write(f"Another process is still running migrate after {timeout:g} s; nothing was done.")
                return None
            if answered >= news_at:
                self.stderr.write(f"Waiting for another process that runs migrate{self._holder(lock)}.")
                news_at = answered + NEWS
            time.sleep(PAUSE if timeout is None else max(0.0, min(PAUSE, began + timeout - answered)))

    @staticmethod
    def _holder(lock: Lock) -> str:
        (report,) = held_by_name(lock.name, lock.using)  # before the first migrate names are stored nowhere
        for info in report.locks:
            if info.holder:
                since = f" since {info.acquired_at:%Y-%m-%d %H:%M:%S %Z}" if info.acquired_at else ""
                return f": {one_line(info.holder)}{since}"
        return ""


def _migrate() -> BaseCommand:
    """Django's migrate, or that of an app that replaces it."""
    found = get_commands()["migrate"]
    return found if isinstance(found, BaseCommand) else load_command_class(found, "migrate")
