"""R5 to R7, R19 and R23 as the shared layer keeps them: which timeout counts, how many locks a process may hold, and
what becomes of a grant that comes too late."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import (
    BackendUnavailable,
    DistlockError,
    LockNotAcquired,
    LockTimeout,
    advisory_lock,
    lock_all,
    semaphore,
)
from django_distlock.concurrency import clock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor
    from tests.support.clock import FakeClock


@pytest.fixture
def configured(settings: Any) -> Callable[..., None]:
    """Puts more into the settings of the alias."""

    def configure(**more: Any) -> None:
        settings.DISTLOCK = {**settings.DISTLOCK, "memory": {**settings.DISTLOCK["memory"], **more}}

    return configure


@both_faces
def test_r5_the_timeout_of_the_call_goes_before_the_lock_s_and_that_before_the_alias_s(
    me: Actor, other: Actor, using: str, name: str, configured: Callable[..., None]
) -> None:
    configured(TIMEOUT=0.07)
    lock, impatient = advisory_lock(name, using=using), advisory_lock(name, using=using, timeout=0.03)
    held = other.acquire(lock)
    for seconds, attempt in (
        (0.07, lambda: me.acquire(lock)),
        (0.03, lambda: me.acquire(impatient)),
        (0.03, lambda: me.enter(impatient)),
        (0.02, lambda: me.acquire(impatient, timeout=0.02)),
    ):
        with pytest.raises(LockTimeout, match=f"after {seconds} s"):
            attempt()
    with pytest.raises(LockNotAcquired) as busy:
        me.acquire(impatient, timeout=0)
    assert str(busy.value) == f"The lock {name!r} of alias {using!r} is held by another caller."
    assert me.try_acquire(impatient, timeout=0.02) is None
    other.release(held)


@both_faces
def test_r19_a_grant_that_comes_after_its_own_validity_is_given_back(
    me: Actor, other: Actor, lock: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer is older than its TTL; the second one counts."""
    late = []

    def aged(grant: Any) -> Any:
        if grant is None or late:
            return grant
        late.append(grant)
        return grant._replace(valid_until=clock.now() - 0.001)

    try_acquire = backend.try_acquire

    async def atry_acquire(*args: Any) -> Any:
        return aged(try_acquire(*args))

    monkeypatch.setattr(backend, "try_acquire", lambda *args: aged(try_acquire(*args)))
    monkeypatch.setattr(backend, "atry_acquire", atry_acquire)
    lease = me.acquire(lock)
    assert (len(late), lease.held) == (1, True)
    assert lease.valid_until > clock.now()
    me.release(lease)
    other.release(other.acquire(lock, timeout=0))


@pytest.fixture
def refuse(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Has the engine answer with an error."""

    def raises(error: BaseException) -> None:
        def try_acquire(*args: Any) -> Any:
            raise error

        monkeypatch.setattr(backend, "try_acquire", try_acquire)

    return raises


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt("mine"), OSError("mine")])
def test_r7_what_the_engine_does_not_know_is_undone(
    lock: Any, backend: Any, refuse: Any, error: BaseException, fails: bool, monkeypatch: Any, caplog: Any
) -> None:
    """By another thread: a caller that is interrupted does not wait. What fails is in the log."""
    undone: list[Any] = []

    def undo(claim: Any) -> None:
        undone.append(claim)
        if fails:
            raise BackendUnavailable("still gone")

    refuse(error)
    monkeypatch.setattr(backend, "undo", undo)
    with pytest.raises(type(error)):
        lock.acquire(timeout=9)
    eventually(lambda: undone and not lock_table.all(), "it stays in the line, or is not undone")
    eventually(lambda: ("still gone" in caplog.text) is fails, "the failure is not told")


def test_r5_a_slow_server_is_not_asked_for_every_slot(
    backend: Any, name: str, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for as many as it answers within the time of a call. It is busy only if each was asked for (R6)."""
    monkeypatch.setattr(backend, "supports_semaphore", False)
    monkeypatch.setattr(backend, "try_acquire", lambda claim, wait=0: fake_clock.advance(0.3))
    began = clock.now()
    with pytest.raises(BackendUnavailable, match="4 of the 50 slots"):
        semaphore(name, 50, using="memory").try_acquire(timeout=0)
    assert 1 <= clock.now() - began < 2
    assert semaphore(name, 4, using="memory").try_acquire(timeout=0) is None
    assert semaphore(name, 4, using="memory").try_acquire(timeout=1.5) is None
    assert not lock_table.all()


def test_r20_max_hold_below_the_ttl_shortens_it(
    me: Actor, using: str, name: str, configured: Callable[..., None]
) -> None:
    """That of the lock and that of the alias; the alias's TTL is what a lock gets that says nothing."""
    lease = me.acquire(advisory_lock(name, using=using, ttl=300, max_hold=100))
    assert clock.now() < lease.valid_until <= clock.now() + 100
    me.release(lease)
    configured(TTL=700, MAX_HOLD=500)
    for max_hold, end in (({}, 500), ({"max_hold": None}, 700)):
        lease = me.acquire(advisory_lock(name, using=using, **max_hold))
        assert end - 100 < lease.valid_until - clock.now() <= end
        me.release(lease)


def test_r23_max_held(
    me: Actor, other: Actor, using: str, name: str, settings: Any, configured: Callable[..., None]
) -> None:
    """Of each alias; re-entry is no further lock, and many readers are one: a server keeps one entry for them."""
    assert registry.entry(using).config.max_held == 1000
    configured(MAX_HELD=3)
    settings.DISTLOCK = {**settings.DISTLOCK, "elsewhere": settings.DISTLOCK["memory"]}
    leases = [me.acquire(advisory_lock(f"{name}{number}", using=using)) for number in range(3)]
    for attempt in (me.acquire, me.try_acquire, other.acquire, other.try_acquire):
        with pytest.raises(DistlockError) as error:
            attempt(advisory_lock(f"{name}x", using=using))
        assert not isinstance(error.value, LockNotAcquired)
        assert "3 locks" in str(error.value)
        assert "raise MAX_HELD in DISTLOCK" in str(error.value)
    for free in (advisory_lock(f"{name}0", using=using), advisory_lock(name, using="elsewhere")):
        me.release(me.acquire(free))
    me.release(leases.pop())
    reader = advisory_lock(f"{name}r", using=using, shared=True)
    for lease in [actor.acquire(reader) for actor in (me, other)]:
        me.release(lease)
    with pytest.raises(DistlockError, match="MAX_HELD"):
        other.acquire(lock_all([f"{name}y", f"{name}z"], using=using))
    leases.append(me.acquire(advisory_lock(f"{name}y", using=using)))
    for lease in leases:
        me.release(lease)


@both_faces
def test_a_long_hold_is_warned_of_once(
    me: Actor, lock: Any, configured: Callable[..., None], caplog: Any, fake_clock: FakeClock
) -> None:
    configured(WARN_HOLD_SECONDS=5)
    with caplog.at_level(logging.WARNING, "django_distlock"):
        lease = me.acquire(lock)
        fake_clock.advance(4)
        assert "has been held for" not in caplog.text
        for _ in range(3):
            fake_clock.advance(2)
        me.release(lease)
    assert caplog.text.count("has been held for") == 1
    assert lock.name in caplog.text
