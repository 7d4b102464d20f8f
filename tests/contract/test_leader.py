"""One of many candidates leads, and steps down in order: on every backend, in threads and in tasks."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from typing import Any

import pytest

from django_distlock import Leader, LockLost, UnsupportedOperation, advisory_lock
from django_distlock.locks.leader import Term
from django_distlock.manager.lock_table import State, lock_table
from tests.conftest import PATIENCE, eventually
from tests.contract.test_fork import in_child

pytestmark = pytest.mark.usefixtures("databases")


def somebody_queues() -> None:
    """The next of this process is in the queue."""
    eventually(lambda: any(one.state is State.WAITING for one in lock_table.all()), "nobody waits")


class Diary(queue.Queue[str]):
    """What happened to the candidates, in order."""

    def next(self) -> str:
        return self.get(timeout=PATIENCE)

    def candidate(self, who: str, name: str, using: str) -> Leader:
        return Leader(
            name,
            using=using,
            on_elected=lambda term: self.put(f"{who} elected"),
            on_demoted=lambda term: self.put(f"{who} demoted {term.reason}"),
        )


def is_free(using: str, name: str) -> bool:
    with advisory_lock(name, using=using, timeout=0) as lease:
        return lease.held


def test_leadership_goes_from_hand_to_hand(using: str, name: str) -> None:
    diary = Diary()
    first, second = diary.candidate("first", name, using), diary.candidate("second", name, using)
    with first:
        assert diary.next() == "first elected"
        assert first.leading
        with second:
            somebody_queues()
            assert second.elected(0) is None
            first.resign()
            assert [diary.next(), diary.next()] == ["first demoted resigned", "second elected"]
            assert second.leading
            assert not first.leading
            somebody_queues()
            second.resign()
            assert [diary.next(), diary.next()] == ["second demoted resigned", "first elected"]
        assert first.leading
        assert diary.empty()  # a candidate that did not lead has nothing to be told
        first.resign()  # alone it is elected again
        assert [diary.next(), diary.next()] == ["first demoted resigned", "first elected"]
    assert diary.next() == "first demoted stopped"
    assert not first.leading
    assert is_free(using, name)


def test_leadership_goes_from_task_to_task(using: str, name: str) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def work(term: Term) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        first, second = Leader(name, using=using, on_elected=work), Leader(name, using=using)
        async with first:
            term = await first.aelected(PATIENCE)
            assert term is not None
            async with second:
                await asyncio.to_thread(somebody_queues)
                first.resign()
                assert not term.leading
                assert await second.aelected(PATIENCE)
                assert ended.is_set(), "the work was still going on when another one led"
                assert term.reason == "resigned"
        assert not second.leading

    asyncio.run(main())
    assert is_free(using, name)


def test_the_lock_is_given_up_after_the_work(name: str) -> None:
    """However long that takes; a term that is resigned is over for the work at once."""
    may_end, told = threading.Event(), threading.Event()

    def work(term: Term) -> None:
        while term.wait(PATIENCE):
            pass
        told.set()
        may_end.wait(PATIENCE)

    with Leader(name, using="leasetable", on_elected=work) as leader:
        term = leader.elected(PATIENCE)
        assert term is not None
        leader.resign()
        assert told.wait(PATIENCE)
        with pytest.raises(LockLost, match="resigned"):
            term.ensure_leading()
        with Leader(name, using="leasetable") as other:
            somebody_queues()
            assert other.elected(0) is None
            may_end.set()
            later = other.elected(PATIENCE)
            assert later is not None
            assert later.fence > term.fence


@pytest.mark.parametrize("using", ["memory", "postgres"])
def test_a_cancelled_candidate_steps_down_first(using: str, name: str) -> None:
    diary = Diary()

    async def main() -> None:
        leader, waiting = diary.candidate("first", name, using), diary.candidate("second", name, using)
        leads = asyncio.create_task(leader.arun())
        assert await leader.aelected(PATIENCE)
        waits = asyncio.create_task(waiting.arun())
        await asyncio.to_thread(somebody_queues)
        for task in (waits, leads):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [diary.next(), diary.next(), diary.empty()] == ["first elected", "first demoted stopped", True]
    assert is_free(using, name)


def test_a_candidate_that_is_cancelled_while_it_steps_down_goes_on_with_that(name: str) -> None:
    began, may_end = threading.Event(), threading.Event()

    def demoted(term: Term) -> None:
        began.set()
        may_end.wait(PATIENCE)

    async def main() -> None:
        leader = Leader(name, using="memory", on_demoted=demoted)
        task = asyncio.create_task(leader.arun())
        assert await leader.aelected(PATIENCE)
        leader.resign()
        assert await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0.05)
        assert await advisory_lock(name, using="memory").alocked(), "free while a callback goes on"
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await advisory_lock(name, using="memory").alocked(), "held by nobody"

    asyncio.run(main())


def fail(term: Term) -> None:
    raise ZeroDivisionError


async def fail_async(term: Term) -> None:
    raise ZeroDivisionError


async def await_what_it_has_cancelled(term: Term) -> None:
    task = asyncio.create_task(asyncio.sleep(PATIENCE))
    task.cancel()
    await task


@pytest.mark.parametrize("work", [fail, fail_async, await_what_it_has_cancelled])
def test_work_that_fails_lets_another_one_lead(work: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    demoted: list[str | None] = []
    with Leader(name, using="memory", on_elected=work, on_demoted=lambda term: demoted.append(term.reason)):
        eventually(lambda: demoted, "it leads on")
        with Leader(name, using="memory") as other:
            assert other.elected(PATIENCE)
    assert set(demoted) == {"failed"}
    assert "ZeroDivisionError" in caplog.text or "CancelledError" in caplog.text


@pytest.mark.parametrize("tidy_up", [fail, fail_async, await_what_it_has_cancelled])
def test_a_failure_to_tidy_up_keeps_no_lock_and_ends_no_candidacy(tidy_up: Any, name: str) -> None:
    with Leader(name, using="memory", on_demoted=tidy_up) as leader:
        assert leader.elected(PATIENCE)
        with Leader(name, using="memory") as other:
            somebody_queues()
            leader.resign()
            assert other.elected(PATIENCE), "held by nobody"
        assert leader.elected(PATIENCE)


def test_a_block_that_is_cancelled_at_its_beginning_leaves_no_candidate(name: str) -> None:
    async def main() -> None:
        leader = Leader(name, using="memory")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), leader:
                await asyncio.sleep(PATIENCE)
        assert await leader.aelected(0.2) is None
        async with leader:
            assert await leader.aelected(PATIENCE)

    asyncio.run(main())


def test_a_callback_may_stop_the_candidacy(name: str) -> None:
    leader = Leader(name, using="memory", on_elected=lambda term: leader.stop())
    leader.run()
    assert not leader.leading
    with pytest.raises(RuntimeError, match="already"), Leader(name, using="memory") as other:
        other.start()


def test_what_cannot_be_had_is_raised(name: str) -> None:
    impossible = Leader(name, using="postgres", ttl=5)
    impossible.start()
    assert impossible.elected(PATIENCE) is None
    for told in (impossible.stop, impossible.run, lambda: asyncio.run(impossible.arun())):
        with pytest.raises(UnsupportedOperation, match="ttl"):
            told()
    with pytest.raises(ZeroDivisionError), impossible:
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="margin"), Leader(name, using="leasetable", margin=29) as leader:
        leader.elected(PATIENCE)


def test_a_candidate_without_an_event_loop_has_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no file left. Nobody waits for it, and it may stand again."""

    def none(*args: Any, **kwargs: Any) -> Any:
        raise OSError("too many open files")

    leader = Leader(name, using="memory")
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run", none)
        leader.start()
        assert leader.elected(PATIENCE) is None
        with pytest.raises(OSError, match="too many"):
            leader.stop()
    with leader:
        assert leader.elected(PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"ttl": 0}, ValueError, "ttl"),
        ({"margin": "1"}, TypeError, "margin"),
        ({"ttl": 10, "margin": 5}, ValueError, "margin must be below half"),
        ({"on_elected": 3}, TypeError, "on_elected"),
        ({"on_demoted": "f"}, TypeError, "on_demoted"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Leader("x", **arguments)


def test_held_for(name: str) -> None:
    with advisory_lock(name, using="leasetable", ttl=50) as lease:
        assert lease.held_for(0)
        assert lease.held_for(20)
        assert not lease.held_for(60)
    assert not lease.held_for(0)
    with advisory_lock(name, using="postgres") as lease:
        assert lease.held_for(1e6)


def test_a_term_that_was_over_once_stays_over(name: str) -> None:
    """Else the work would have stopped, and this candidate would lead without doing it."""
    with advisory_lock(name, using="leasetable", ttl=30) as lease:
        term = Term(lease, 14)
        assert term.leading
        lease.extend(5)
        assert not term.leading
        lease.extend(30)
        assert not term.leading
        assert term.reason == "not renewed"


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_a_term_is_waited_for_without_an_end(timeout: float | None, name: str) -> None:
    ended: queue.Queue[bool] = queue.Queue()
    with Leader(name, using="memory", on_elected=lambda term: ended.put(term.wait(timeout))) as leader:
        assert leader.elected(PATIENCE)
    assert ended.get(timeout=PATIENCE) is False


def test_who_stops_a_candidate_that_is_just_starting_waits_for_its_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, diary, start = Leader(name, using="memory"), [], threading.Thread.start
    stopper = threading.Thread(target=lambda: (leader.stop(), diary.append("stopped")))

    def slow(thread: threading.Thread) -> None:
        if thread.name == "distlock-leader":
            start(stopper)
            stopper.join(0.2)
            diary.append("begun")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", slow)
        leader.start()
        stopper.join(PATIENCE)
    assert diary == ["begun", "stopped"]


def test_the_handler_of_a_signal_may_stop_what_its_thread_is_just_starting(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, start = Leader(name, using="memory"), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "distlock-leader":
            leader.stop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    leader.start()
    assert leader.elected(PATIENCE) is None
    leader.stop()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_r22_the_child_of_a_fork_is_no_candidate(name: str) -> None:
    """A server that forks inside the block: its child leaves the block, too, and may stand by itself."""
    with Leader(name, using="memory") as leader:
        term = leader.elected(PATIENCE)
        assert term is not None

        def child() -> None:
            assert (leader.leading, term.leading, leader.elected(PATIENCE)) == (False, False, None)
            leader.stop()
            with leader:  # the memory of the child is its own
                assert leader.elected(PATIENCE)

        in_child(child)
        assert leader.term is term
        assert term.leading


def test_a_candidacy_begins_only_after_the_end_of_the_last_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the end of the old one would mark the new one as over: a leader whom stop() does not end."""
    over, go_on, run = threading.Event(), threading.Event(), asyncio.run

    def slow(stand: Any) -> None:
        run(stand)
        over.set()
        go_on.wait(PATIENCE)

    leader = Leader(name, using="memory")
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run", slow)
        leader.start()
        assert leader.elected(PATIENCE)
        leader.stop(0)
        assert over.wait(PATIENCE)
        with pytest.raises(RuntimeError, match="already"):
            leader.start()
        go_on.set()
        leader.stop()
    with leader:
        assert leader.elected(PATIENCE)
    assert not leader.leading
