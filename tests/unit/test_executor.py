"""R7: the calls of tasks in the threads of a backend. What a task does not wait for any more is undone, once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends import base
from django_distlock.concurrency.background import CallTimeout
from django_distlock.concurrency.executor import Threads
from django_distlock.keys import derive_key
from django_distlock.records import Claim, Grant
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("test")
    yield made
    made.stop()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield patch


class Call:
    """A call that waits until it may end, and what became of its result."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.undone: list[str] = []
        self.stopped = 0

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        return "granted"

    def stop(self) -> None:
        self.stopped += 1
        self.may_end.set()

    def task(self, threads: Threads, kind: str) -> Any:
        if kind == "short":
            return threads.short(self, undo=self.undone.append)
        return threads.long(self, stop=self.stop, undo=self.undone.append)


kinds = pytest.mark.parametrize("kind", ["short", "long"])


@kinds
@pytest.mark.parametrize("ended", [False, True], ids=["runs", "has ended"])
def test_r7_a_cancelled_call_is_stopped_and_undone_before_the_task_goes_on(
    kind: str, ended: bool, threads: Threads
) -> None:
    call = Call()

    async def main() -> None:
        task = asyncio.create_task(call.task(threads, kind))
        await asyncio.to_thread(call.begun.wait, PATIENCE)
        if ended:
            call.may_end.set()
            threading.Event().wait(0.05)  # the thread ends the call while the event loop stands
        task.cancel()
        await turns()
        if kind == "short":  # it is not stopped: the task waits for its end
            assert ended or not task.done()
            call.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert call.undone == ["granted"]

    asyncio.run(main())
    assert call.stopped == (kind == "long")


@kinds
@pytest.mark.parametrize("ended", [False, True], ids=["runs", "has ended"])
def test_r7_a_call_of_a_closed_event_loop_is_undone(kind: str, ended: bool, threads: Threads, name: str) -> None:
    """Whoever closes the coroutine cannot wait; that may be the garbage collector."""
    call, loop = Call(), asyncio.new_event_loop()
    coroutine = call.task(threads, kind)

    async def begin() -> None:
        coroutine.send(None)  # up to its wait
        await asyncio.to_thread(call.begun.wait, PATIENCE)

    loop.run_until_complete(begin())
    if ended:
        call.may_end.set()
        eventually(lambda: threads.idle() or kind == "long", "the call does not end")
    loop.close()
    if ended:
        threading.Event().wait(0.05)
    coroutine.close()
    call.may_end.set()
    with advisory_lock(name, using="memory"):  # the keepalive thread does what is left
        eventually(lambda: call.undone == ["granted"], "it is not undone")


def test_r5_a_call_behind_one_that_hangs_is_given_up_and_never_begun(threads: Threads) -> None:
    hangs, ran = Call(), []

    async def main() -> None:
        first = asyncio.create_task(hangs.task(threads, "short"))
        await asyncio.to_thread(hangs.begun.wait, PATIENCE)
        with pytest.raises(CallTimeout):
            await threads.short(ran.append, "acquire", undo=ran.append, patience=0.05)
        with pytest.raises(CallTimeout):
            await threads.short(ran.append, "release", patience=0.05)
        hangs.may_end.set()
        assert await first == "granted"

    asyncio.run(main())
    eventually(lambda: ran == ["release"], f"{ran}")


class Engine(base.Backend):
    """Busy at first, granted to those who wait; it knows what it was asked."""

    waits_inside = True

    def __init__(self, alias: str, options: Any) -> None:
        super().__init__(alias, options)
        self.journal: list[str] = []
        self.stopped = threading.Event()

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        self.journal.append("wait" if wait else "ask")
        if not wait:
            return None
        self.stopped.wait(PATIENCE)
        return Grant(claim=claim, acquired_at=0, fence=7)

    def stop(self, claim: Claim) -> None:
        self.journal.append("stop")
        self.stopped.set()

    def release(self, grant: Grant) -> bool:
        self.journal.append(f"release {grant.fence}")
        return True

    def inspect(self) -> Iterable[Any]:
        return ()


CLAIM = Claim(key=derive_key("site", "alias", "name"))


def test_r7_an_engine_that_waits_asks_first_and_is_stopped_when_the_task_is_cancelled() -> None:
    engine = Engine("given", {})

    async def main() -> None:
        task = asyncio.create_task(engine.atry_acquire(CLAIM, 5))
        await asyncio.to_thread(eventually, lambda: engine.journal == ["ask", "wait"], "no wait")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.journal == ["ask", "wait", "stop", "release 7"]

    asyncio.run(main())
    engine.close()


def test_r6_a_task_without_a_thread_or_an_answer_is_told_that_the_engine_is_unavailable(
    no_threads: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread its event loop does nothing but release."""
    engine, hangs = Engine("given", {}), Call()
    grant = Grant(claim=CLAIM, acquired_at=0, fence=7)
    monkeypatch.setattr(base, "PATIENCE", 0.05)

    async def main() -> None:
        for ask in (engine.atry_acquire(CLAIM, 5), engine.aextend(grant, 5), engine.averify(grant)):
            with pytest.raises(BackendUnavailable, match=r"'given'.*thread"):
                await ask
        assert await engine.arelease(grant)
        assert engine.journal == ["release 7"]
        no_threads.undo()
        first = asyncio.create_task(hangs.task(engine.threads, "short"))
        await asyncio.to_thread(hangs.begun.wait, PATIENCE)
        with pytest.raises(BackendUnavailable, match=r"'given'.*in time"):
            await engine.atry_acquire(CLAIM)
        hangs.may_end.set()
        await first

    asyncio.run(main())
    engine.close()
    assert engine.journal == ["release 7"], "what was refused has been run later"
