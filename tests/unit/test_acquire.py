"""How an engine is asked until the deadline, and what it is told when that ends early: an engine whose answers are
given, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.connection import ConnectionDoesNotExist

from django_distlock import BackendUnavailable, Lock, advisory_lock
from django_distlock.backends.base import Backend
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.records import Claim, Grant, LockInfo
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.clock import FakeClock


class Engine(Backend):
    """Answers what it was given: an exception, None (busy), or a number, which is the fence of a grant."""

    supports_fencing = True

    def __init__(self, alias: str, options: Any) -> None:
        super().__init__(alias, options)
        self.answers: list[Any] = []
        self.journal: list[Any] = []
        self.clock: FakeClock | None = None
        self.gates: dict[str, threading.Event] = {}  # what is to be waited for before the answer
        self.fails: Exception | None = None  # of undo()

    def _at_gate(self, entry: Any) -> None:
        self.journal.append(entry)
        verb = entry if isinstance(entry, str) else entry[0]
        if verb in self.gates:
            assert self.gates[verb].wait(PATIENCE)

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        self._at_gate(("try", wait))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer and Grant(claim=claim, acquired_at=0, fence=answer)

    def pause(self, claim: Claim, attempt: int) -> float:
        if self.clock is not None:
            self.clock.time += min(2, self.journal[-1][1])
        return 0

    def release(self, grant: Grant) -> bool:
        self.journal.append(f"release {grant.fence}")
        return True

    def undo(self, claim: Claim) -> None:
        self._at_gate("undo")
        if self.fails is not None:
            raise self.fails

    def inspect(self) -> Iterable[LockInfo]:
        return ()


@pytest.fixture
def engine(settings: Any) -> Engine:
    settings.DISTLOCK = {**settings.DISTLOCK, "given": {"BACKEND": f"{__name__}.Engine"}}
    return registry.entry("given").backend  # type: ignore[return-value]


@pytest.fixture
def lock(engine: Engine, name: str) -> Lock:
    return advisory_lock(name, using="given", timeout=None)


def test_r5_busy_until_the_deadline(engine: Engine, lock: Lock, fake_clock: FakeClock) -> None:
    engine.clock = fake_clock
    assert lock.try_acquire(timeout=5) is None
    assert engine.journal == [("try", 5), ("try", 3), ("try", 1), ("try", 0)]
    engine.journal.clear()
    assert lock.try_acquire(timeout=0) is None
    assert engine.journal == [("try", 0)]
    engine.journal.clear()
    engine.answers = [7]
    lock.acquire(timeout=None).release()
    assert engine.journal == [("try", math.inf), "release 7"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt("mine"), OSError("mine")])
def test_r7_what_the_engine_does_not_know_is_undone(
    engine: Engine, lock: Lock, error: BaseException, fails: bool, caplog: Any
) -> None:
    """By another thread: a caller that is interrupted does not wait. What fails is in the log."""
    engine.answers = [None, error]
    engine.fails = BackendUnavailable("still gone") if fails else None
    with pytest.raises(type(error)):
        lock.acquire(timeout=9)
    eventually(lambda: not lock_table.all(), "it stays in the line")
    assert engine.journal[-1] == "undo"
    eventually(lambda: ("still gone" in caplog.text) is fails, "the failure is not told")


@pytest.mark.parametrize("error", [ImproperlyConfigured("mine"), ConnectionDoesNotExist("mine")])
def test_r6_after_a_mistake_of_the_settings_the_lock_is_free_at_once(
    engine: Engine, lock: Lock, error: Exception
) -> None:
    """Nothing is left to another thread, which may be late: the next one would be told that the lock is held."""
    engine.answers = [error]
    with pytest.raises(type(error)):
        lock.acquire(timeout=0)
    assert not lock_table.all()


@pytest.mark.parametrize("answer", [7, OSError()])
def test_r7_a_cancelled_statement_runs_to_its_end_and_is_undone(engine: Engine, lock: Lock, answer: Any) -> None:
    gate = engine.gates["try"] = threading.Event()
    engine.answers = [answer]

    async def main() -> None:
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(eventually, lambda: engine.journal, "it does not ask")
        task.cancel()
        await turns(10)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    undone = ["release 7"] if answer == 7 else []
    assert [entry for entry in engine.journal if str(entry).startswith("release")] == undone
