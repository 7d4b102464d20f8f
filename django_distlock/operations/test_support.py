"""What :mod:`django_distlock.testing` needs to know of the inside."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.flow import run
from django_distlock.conf import configured
from django_distlock.exceptions import DistlockError, LockNotHeld
from django_distlock.manager import open_transactions, owner, release
from django_distlock.manager.hold import State
from django_distlock.manager.introspection import held_locks
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from django_distlock.locks.lease import Lease

MEMORY = "django_distlock.backends.memory.MemoryBackend"


def in_memory(using: Collection[str] | None) -> dict[str, Mapping[str, Any]]:
    """DISTLOCK as it is configured, but these aliases (None: all) in the memory of this process."""
    aliases = configured()
    unknown = [alias for alias in using or () if alias not in aliases]
    if unknown:
        raise ValueError(f"using: there is no lock alias {unknown[0]!r} in DISTLOCK.")
    return {
        alias: {**entry, "BACKEND": MEMORY, "OPTIONS": {}} if using is None or alias in using else entry
        for alias, entry in aliases.items()
    }


@contextlib.contextmanager
def testcases_do_not_count() -> Iterator[None]:
    """The transactions that TestCase puts around a class and a test are none for locks."""
    before = open_transactions.testcases_count
    open_transactions.testcases_count = False
    try:
        yield
    finally:
        open_transactions.testcases_count = before


def close_sessions() -> None:
    """Close every lock session of this process, so that a database can be dropped."""
    registry.close()


def held_here() -> list[str]:
    """The locks that this process holds, each as one line."""
    return [
        f"{one.key.name!r} on {one.backend.alias!r}"
        + (", until its transaction ends" if one.state is State.DEFERRED else "")
        for one in lock_table.held()
    ]


def held_by_anybody(name: str, using: str) -> tuple[bool, list[str]]:
    """Is it held now, as its engine says? And what is, each as one line."""
    entry = registry.entry(using)
    if not entry.ready:
        run(_load())
    key = entry.key(name)
    (report,) = held_locks(using)
    if report.error is not None:
        raise DistlockError(f"The locks of alias {using!r} cannot be listed: {report.error}.")
    named = [info for info in report.locks if "kind" not in info.details]
    spellings = {str(key.number), key.text, key.path}
    found = any(info.name == name or info.key in spellings for info in named)
    return found, [f"{info.name or info.key!r}, held by {info.holder or 'unknown'}" for info in named]


def _load() -> Any:
    from django_distlock.concurrency.flow import Step

    yield Step(site_key.load, site_key.aload)


def lose(lease: Lease, reason: str) -> None:
    """Have ``lease`` lost: the engine gives the lock away, and the holder is told."""
    hold = lease._hold
    grant = hold.grant
    if lease._released or not release.lose(hold, reason):
        raise LockNotHeld(f"{lease!r} cannot be lost: it is not held.")
    if grant is None or grant.claim.scope == "transaction":  # only its transaction can end it
        return

    def give_away() -> None:
        with contextlib.suppress(DistlockError):
            hold.backend.release(grant)

    if owner.on_event_loop():  # which must go on for the engine to be asked
        threading.Thread(target=give_away, name="distlock-release", daemon=True).start()
    else:
        give_away()
