"""Does the server keep a second session out, and let it in when the first one ends? `distlock doctor` asks; the first
session of a process goes by names."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.keys import LockKey
from django_distlock.records import Claim, Finding

from .session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = TypeVar("S", bound=Session)


def findings(alias: str, connect: Callable[[bool], S], shared: bool) -> Iterator[Finding]:
    """Ask with two sessions for a lock that nobody else knows. ``shared``: the engine has shared locks."""
    first = connect(False)
    try:
        second = connect(False)
        try:
            if not all(_excludes(alias, first, second, *modes) for modes in _modes(shared)):
                yield Finding(
                    "error",
                    "This server grants one lock to two sessions: its locks exclude nobody.",
                    "Take another backend there, such as leasetable.LeaseTableBackend or redis.RedisBackend. A "
                    "session_database must lead to the same database of the same server.",
                )
            elif not _frees(alias, first, second):
                yield Finding(
                    "error",
                    "A session that ended has left its lock held: so would a process that dies.",
                    "A pooler must reset each session that a client has left: server_reset_query = DISCARD ALL, the "
                    "default of pgbouncer.",
                )
        finally:
            second.close()
    finally:
        first.close()


def _modes(shared: bool) -> list[tuple[bool, bool]]:
    """Is the lock shared that is held, and the one that is asked for?"""
    return [(False, False), (False, True), (True, False)] if shared else [(False, False)]


def _excludes(alias: str, first: Session, second: Session, held: bool, asked: bool) -> bool:
    key = LockKey(alias, "distlock-probe", secrets.token_bytes(32))
    return bool(first.ask(first.try_lock(Claim(key, held)))) and not second.ask(second.try_lock(Claim(key, asked)))


def _frees(alias: str, first: Session, second: Session) -> bool:
    """Does the end of ``first`` free its lock within a second?"""
    claim, until = Claim(LockKey(alias, "distlock-probe", secrets.token_bytes(32))), clock.now() + SILENCE
    first.ask(first.try_lock(claim))
    first.close()
    while not second.ask(second.try_lock(claim)):
        if clock.now() >= until:
            return False
        time.sleep(0.02)
    return True
