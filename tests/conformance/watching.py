"""Looking at queues and taking locks away: what a test needs to know instead of sleeping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock import break_lock, held_locks
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key

if TYPE_CHECKING:
    from django_distlock.records import LockInfo
    from tests.matrix import Entry


def waiting_here(name: str) -> int:
    """How many contexts of this process wait for their turn to ask the engine."""
    return sum(hold.state is State.WAITING and hold.key.name == name for hold in lock_table.everything())


def asking_here(name: str) -> int:
    """How many contexts of this process ask the engine now."""
    return sum(hold.state is State.CLAIMING and hold.key.name == name for hold in lock_table.everything())


def waiting_at_the_engine(using: str, name: str) -> int:
    """How many waiters the engine knows of, of any process."""
    return sum(info.waiters or 0 for info in listed(using, name))


def listed(using: str, name: str) -> list[LockInfo]:
    """The holders of a name, as an operator is shown them."""
    site_key.load()
    registry.entry(using).key(name)  # so that the name of the hash is known
    (report,) = held_locks(using)
    assert report.error is None, report
    return [info for info in report.locks if info.name == name]


def take_away(entry: Entry, name: str) -> None:
    """Have an operator end the holder's hold, without a word to it."""
    infos = listed(entry.using, name)
    assert [break_lock(info) for info in infos] == [True] * len(infos) != []
