"""What held_locks() shows of a lock: its holder, its end, who waits."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock, held_locks
from tests.conftest import eventually
from tests.contract.actors import PATIENCE
from tests.contract.conftest import across_processes, sharing
from tests.contract.watching import listed, waiting_at_the_engine
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from django_distlock.records import LockInfo
    from tests.contract.actors import Actor


def test_a_lock_of_this_process_is_listed_while_it_is_held(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using, **({"ttl": 300} if backend.supports_ttl else {})))
    (info,) = listed(using, name)
    assert (info.backend, info.name, info.shared) == (using, name, False)
    assert info.key
    assert info.holder
    if backend.supports_fencing:
        assert info.fence == lease.fence
    if backend.supports_ttl:
        assert info.expires_at is not None
        assert timedelta(seconds=200) < info.expires_at - datetime.now(UTC) < timedelta(seconds=301)
        assert info.acquired_at is not None
        assert abs(info.acquired_at - datetime.now(UTC)) < timedelta(seconds=100)
    me.release(lease)
    assert listed(using, name) == []


@across_processes
def test_a_lock_of_another_process_is_listed_with_its_waiters(
    me: Actor, rival: Any, using: str, name: str, backend: Any
) -> None:
    held = rival.acquire(using, name)
    (info,) = listed(using, name)
    assert info.holder
    assert not info.waiters
    waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    seen: list[LockInfo] = []
    eventually(lambda: seen.extend(listed(using, name)) or seen[-1].waiters == 1, "no waiter is listed")
    who = "".join(seen[-1].waiting)
    # MySQL names only the account and its connection
    assert f":{os.getpid()}" in who or (backend.alias == "mysql" and "@" in who)
    rival.release(held)
    lease = waiting.result(PATIENCE)
    eventually(lambda: waiting_at_the_engine(using, name) == 0, "a waiter that has gone is listed")
    me.release(lease)


@sharing
def test_a_shared_lock_is_listed_as_shared(me: Actor, using: str, name: str) -> None:
    lease = me.acquire(advisory_lock(name, using=using, shared=True))
    (info,) = listed(using, name)
    assert info.shared
    me.release(lease)


def test_all_aliases_at_once(databases: None, name: str, settings: Any) -> None:
    with advisory_lock(name, using="memory"):
        reports = held_locks()
    assert {report.alias for report in reports} == set(settings.DISTLOCK)
    assert {entry.using for entry in MATRIX} < set(settings.DISTLOCK)
    assert name in [info.name for report in reports if report.alias == "memory" for info in report.locks]
