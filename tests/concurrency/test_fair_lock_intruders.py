"""FairLock: a caller that comes, or a waiter that leaves, in the middle of a hand-over. Never two holders."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency.parking import HOLDER, FairLock, Parker
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


class Intruded(dict[str, Any]):
    """The holder of a lock. Each time that there is none, the next of ``intruders`` comes just after the look."""

    def __init__(self, *intruders: Callable[[], object]) -> None:
        super().__init__()
        self.intruders = list(intruders)

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        if found is None and self.intruders:
            self.intruders.pop(0)()
        return found


def test_r1_a_caller_that_comes_while_a_release_is_repeated_keeps_the_lock() -> None:
    """A release is repeated where an interrupt may have cut it off. Most often nothing is left to be done."""
    lock = FairLock()
    turn, other = lock.turn(), lock.turn()
    assert turn.try_acquire()
    turn.release()
    lock._held = Intruded(bool, other.try_acquire)
    turn.release()
    assert not lock.try_acquire()
    other.release()
    assert lock.try_acquire()


def test_r1_a_caller_that_comes_while_a_lost_turn_is_mended_keeps_the_lock() -> None:
    """Two callers find that the turn of the holder is gone; when the second one looks again, the first has mended it
    and left, and a third one comes."""
    lock = FairLock()
    lock.turn().try_acquire()
    lost = lock._held[HOLDER]
    assert lost() is None
    other = lock.turn()
    lock._held = Intruded(other.try_acquire)
    lock._pass_on(lost)
    assert not lock.try_acquire()
    other.release()
    assert lock.try_acquire()


def test_r1_a_waiter_that_finds_itself_the_holder_at_its_deadline_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R7: the release was interrupted between the hand-over and the wake-up, and the waiter's time ended then."""
    lock = FairLock()
    holder, waiter, wake = lock.turn(), lock.turn(), Parker.wake
    assert holder.try_acquire()
    got: list[bool] = []
    over = threading.Event()

    def until_told(parker: Parker, timeout: float) -> bool:
        """The waiter's time ends when the test says so."""
        assert over.wait(10)
        return parker.leave()

    monkeypatch.setattr(Parker, "park", until_told)
    thread = threading.Thread(target=lambda: got.append(waiter.acquire(0.2)))
    thread.start()
    eventually(lambda: bool(lock._queue), "nobody waits")

    def interrupted(parker: Parker) -> bool:
        monkeypatch.setattr(Parker, "wake", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(Parker, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        holder.release()
    over.set()
    thread.join()
    assert got == [True]
    assert not lock.try_acquire()
    waiter.release()
    assert lock.try_acquire()
