"""Looking at queues, taking locks away and ending leases: what a test needs to know, or to do, instead of sleeping."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import connections

from django_distlock import break_lock, held_locks
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from tests.conftest import eventually

if TYPE_CHECKING:
    from django_distlock.records import LockInfo


def waiting_here(name: str) -> int:
    """How many contexts of this process wait for their turn to ask the engine."""
    return sum(hold.waits and hold.key.name == name for hold in lock_table.all())


def asking_here(name: str) -> int:
    """How many contexts of this process ask the engine now."""
    asking = (State.WAITING, State.CLAIMING)
    return sum(hold.state in asking and not hold.waits and hold.key.name == name for hold in lock_table.all())


def somebody_waits(name: str, count: int = 1) -> None:
    """Until so many contexts of this process wait, here or at the engine."""
    eventually(lambda: asking_here(name) + waiting_here(name) == count, f"not {count} wait for {name}")


def waiting_at_the_engine(using: str, name: str) -> int:
    """How many waiters the engine knows of, of any process."""
    return sum(info.waiters or 0 for info in listed(using, name))


def listed(using: str, name: str) -> list[LockInfo]:
    """The holders of a name, as an operator is shown them."""
    site_key.load()
    registry.entry(using).key(name)  # so that the name of the hash is known
    (report,) = held_locks(using)
    assert (report.alias, report.error) == (using, None)
    return [info for info in report.locks if info.name == name]


def take_away(using: str, name: str) -> None:
    """Have an operator end the holder's hold, without a word to it."""
    infos = listed(using, name)
    assert [break_lock(info) for info in infos] == [True] * len(infos) != []


def end_lease(using: str, name: str) -> None:
    """Let the time of a lease be over by the server's clock, and not by the clock of this host.

    In a lease table the row stays, with its end in the past. Elsewhere a lease whose time is over is gone.
    """
    if not using.startswith("leasetable"):
        take_away(using, name)
        return
    database = settings.DISTLOCK[using].get("OPTIONS", {}).get("database", "default")
    if connections[database].vendor == "sqlite":
        file = sqlite3.connect(f"{connections[database].settings_dict['NAME']}-distlock", timeout=20)
        with file:
            ended = file.execute("UPDATE django_distlock_lease SET expires_at = 1 WHERE name = ?", [name]).rowcount
        file.close()
    else:
        with connections[database].cursor() as cursor:
            cursor.execute(
                "UPDATE django_distlock_lease SET expires_at = 1 WHERE alias = %s AND name = %s", [using, name]
            )
            ended = cursor.rowcount
    assert ended == 1, f"{ended} leases of {name}"
