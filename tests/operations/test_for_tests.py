"""What users' own tests have: assertions, a rehearsed loss, races."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction

from django_distlock import LockLost, LockNotHeld, advisory_lock, held_locks, semaphore
from django_distlock.testing import (
    assert_locked,
    assert_no_locks_held,
    lose,
    race,
)
from tests.conftest import eventually
from tests.operations.listening import listening

pytestmark = pytest.mark.usefixtures("databases")


def test_assert_locked_on_every_backend(using: str, name: str) -> None:
    with pytest.raises(AssertionError, match="is not held"):
        assert_locked(name, using)
    with advisory_lock(name + "-other", using=using), pytest.raises(AssertionError, match="-other"):
        assert_locked(name, using)
    with advisory_lock(name, using=using) as lease:
        assert_locked(name, using)
        with assert_locked(name, using):
            pass
        with pytest.raises(AssertionError, match="is not held any more"), assert_locked(name, using):
            lease.release()
        lease = advisory_lock(name, using=using).acquire()
    with semaphore(name, 2, using=using):
        assert_locked(name, using)
    lease.release()


def test_an_exception_of_the_block_is_not_hidden(name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    with pytest.raises(ZeroDivisionError), assert_locked(name, "memory"), lease:
        raise ZeroDivisionError


def test_assert_no_locks_held_names_them(name: str) -> None:
    assert_no_locks_held()
    with advisory_lock(name, using="memory"), pytest.raises(AssertionError, match=r"on 'memory'\.$"):
        assert_no_locks_held()
    with transaction.atomic():
        with advisory_lock(name, using="memory"):
            pass
        with pytest.raises(AssertionError, match="until its transaction ends"):
            assert_no_locks_held()


# --- a rehearsed loss


def test_a_loss_can_be_rehearsed_on_every_backend(using: str, name: str) -> None:
    told: list[Any] = []
    with listening(name) as heard:
        lease = advisory_lock(name, using=using).acquire()
        lease.on_lost(told.append)
        lose(lease, reason="session")
        assert lease.lost
        assert told == [lease]
        (report,) = held_locks(using)
        assert not [info for info in report.locks if info.name == name]  # others may have it
        with pytest.raises(LockLost):
            lease.ensure_held()
        with pytest.raises(LockLost):
            lease.release()
    assert heard.kinds() == ["acquired", "lost"]
    assert heard.facts("lost")["reason"] == "session"
    with pytest.raises(LockNotHeld):
        lose(lease)


def test_a_loss_can_be_rehearsed_on_an_event_loop(using: str, name: str) -> None:
    async def scene() -> None:
        async with advisory_lock(name, using=using, cancel_on_loss=True) as lease:
            lose(lease)
            await asyncio.sleep(30)

    async def again() -> None:
        async with advisory_lock(name, using=using, timeout=10):
            pass

    with pytest.raises(LockLost):
        asyncio.run(scene())
    asyncio.run(again())


def test_a_lock_inside_a_transaction_can_be_lost(name: str) -> None:
    with transaction.atomic("postgres"):
        lease = advisory_lock(name, using="postgres").acquire()
        assert lease._hold.scope == "transaction"
        lose(lease)
        with pytest.raises(LockLost):
            lease.release()


# --- races


def test_a_race_shows_what_a_lock_prevents() -> None:
    """The naive code registers twice, on real connections; with a lock it does not."""
    both_looked = threading.Barrier(2)

    def naive() -> bool:
        missing = not User.objects.using("postgres").filter(username="raced").exists()
        both_looked.wait(10)
        return missing

    assert race(naive) == [True, True]

    @advisory_lock("raced", using="postgres")
    def careful() -> bool:
        users = User.objects.using("postgres").filter(username="raced")
        if users.exists():
            return False
        User.objects.using("postgres").create(username="raced")
        return True

    try:
        assert sorted(race(careful, 4)) == [False, False, False, True]
    finally:
        User.objects.using("postgres").filter(username="raced").delete()


def test_a_race_gives_results_and_exceptions_in_order() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    one, two, three = race([lambda: 1, fail, lambda: 3])
    assert (one, type(two), three) == (1, ZeroDivisionError, 3)


def test_a_race_closes_its_connections() -> None:
    used: list[Any] = []

    def use() -> None:
        used.append(connections["postgres"])
        connections["postgres"].ensure_connection()

    race(use, 3)
    assert len(set(map(id, used))) == 3
    assert [wrapper.connection for wrapper in used] == [None] * 3


def test_a_race_that_does_not_end_says_so() -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError, match="1 of 2 calls have not ended: race-0"):
        race([lambda: gate.wait(10), lambda: True], timeout=2)
    gate.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "race-0"], "the thread goes on")
