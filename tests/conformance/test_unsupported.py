"""What a backend does not declare is refused with UnsupportedOperation, and never silently ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import UnsupportedOperation, advisory_lock, lock_all, semaphore
from django_distlock.manager.lock_table import lock_table
from django_distlock.records import Claim, LockInfo

if TYPE_CHECKING:
    from tests.conformance.actors import Actor


def _refuses(what: str) -> Any:
    return pytest.raises(UnsupportedOperation, match=rf"^The backend \w+ of alias '\w+' cannot {what}")


def test_ttl_and_max_hold(me: Actor, using: str, name: str, backend: Any) -> None:
    recipes = {
        "ttl": [
            advisory_lock(name, using=using, ttl=30),
            lock_all([name], using=using, ttl=30),
            semaphore(name, 2, using=using, ttl=30),
        ],
        "max_hold": [advisory_lock(name, using=using, max_hold=30), advisory_lock(name, using=using, max_hold=None)],
    }
    for argument, locks in recipes.items():
        for lock in locks:
            for attempt in (me.acquire, me.try_acquire):
                if backend.supports_ttl:
                    me.release(attempt(lock))
                    continue
                with _refuses(f"give a lock a {argument}: it is held for as long as its session lives"):
                    attempt(lock)
    assert list(lock_table.everything()) == []


def test_valid_until_and_extend(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    if backend.supports_ttl:
        assert isinstance(lease.valid_until, float)
        me.extend(lease, 40)
    else:
        assert lease.valid_until is None
        with _refuses("extend a lease: its locks have no TTL"):
            me.extend(lease, 40)
    assert lease.held
    me.release(lease)


def test_fence(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    if backend.supports_fencing:
        assert isinstance(lease.fence, int)
    else:
        with _refuses("give a fencing token"):
            _ = lease.fence
    me.release(lease)


def test_break(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    info = LockInfo(backend=using, key="00" * 32, fence=1, name="nobody's")
    if backend.supports_break:
        assert backend.break_lock(info) is False
    else:
        with _refuses("break a lock"):
            backend.break_lock(info)
    assert lease.held
    me.release(lease)


def test_an_engine_without_ttl_is_never_asked_to_extend(using: str, backend: Any, name: str) -> None:
    if backend.supports_ttl:
        return
    with advisory_lock(name, using=using) as lease, _refuses("extend: its locks have no TTL"):
        backend.extend(lease._grant, 10)


def test_the_default_ttl_of_the_settings_is_no_argument(
    me: Actor, using: str, name: str, backend: Any, settings: Any
) -> None:
    """TTL in DISTLOCK is what a lock gets that says nothing; only an engine with a TTL asks for it."""
    if not backend.supports_ttl:
        return
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "TTL": 7, "MAX_HOLD": 5}}
    lease = me.acquire(advisory_lock(name, using=using))
    assert 4 < lease.valid_until - lease._grant.acquired_at <= 5
    me.release(lease)
    lease = me.acquire(advisory_lock(name, using=using, max_hold=None))
    assert 6 < lease.valid_until - lease._grant.acquired_at <= 7
    me.release(lease)


def test_transaction_scope_is_asked_only_of_engines_that_have_it(using: str, name: str, backend: Any) -> None:
    from django_distlock.manager.transactions import choose_scope

    class Open:
        alias = getattr(backend, "database", "default")

    expected = "transaction" if backend.supports_transaction_scope else "session"
    assert choose_scope(backend, [Open()]) == expected  # type: ignore[list-item]
    assert choose_scope(backend, [Open(), Open()]) == "session"  # type: ignore[list-item]
    assert Claim(key=None).scope == "session"  # type: ignore[arg-type]
