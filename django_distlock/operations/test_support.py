"""The inside of the package, as far as :mod:`django_distlock.testing` needs it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

from django_distlock.conf import configured
from django_distlock.exceptions import DistlockError, LockNotHeld
from django_distlock.manager import open_transactions, owner, release
from django_distlock.manager.introspection import held_locks
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.registry import registry

from .lookup import listed_as

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractContextManager

    from django_distlock.locks.lease import Lease

MEMORY = "django_distlock.backends.memory.MemoryBackend"


def in_memory(using: Collection[str] | None) -> dict[str, Mapping[str, Any]]:
    """DISTLOCK as configured, with these aliases (None: all) in the memory of this process."""
    aliases = configured()
    unknown = [alias for alias in using or () if alias not in aliases]
    if unknown:
        raise ValueError(f"using: there is no lock alias {unknown[0]!r} in DISTLOCK.")
    return {
        alias: {**entry, "BACKEND": MEMORY, "OPTIONS": {}} if using is None or alias in using else entry
        for alias, entry in aliases.items()
    }


def transactions_do_not_count() -> AbstractContextManager[object]:
    """Have each lock end with its block, also inside a transaction."""
    return mock.patch.object(open_transactions, "ignored", True)


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


def find_held(name: str, using: str) -> tuple[bool, list[str]]:
    """Whether any process holds the lock, and every lock that is held there, each as one line."""
    key, listed = listed_as(name, using)
    (report,) = held_locks(using)
    if report.error is not None:
        raise DistlockError(f"The locks of alias {using!r} cannot be listed: {report.error}.")
    named = [info for info in report.locks if "kind" not in info.details]
    found = any(info.name == listed or info.key == key for info in named)
    return found, [f"{info.name or info.key!r}, held by {info.holder or 'unknown'}" for info in named]


def lose(lease: Lease, reason: str) -> None:
    """Lose ``lease``: release it in the engine, and notify its holder of the loss."""
    hold = lease._hold
    grant = hold.grant
    if lease._released or not release.lose(hold, reason):
        raise LockNotHeld(f"{lease!r} cannot be lost: it is not held.")
    if grant is None or grant.claim.scope == "transaction":  # it ends with its transaction only
        return

    def give_away() -> None:
        with contextlib.suppress(DistlockError):
            hold.backend.release(grant)

    if owner.on_event_loop():  # releasing would wait for the loop that it blocks
        threading.Thread(target=give_away, name="distlock-release", daemon=True).start()
    else:
        give_away()
