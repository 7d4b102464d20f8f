"""The registry in front of every engine, by three and more contexts: who gives up, who is next, what counts for
MAX_HELD, and circles of waiters (R4, R8, R23). What two contexts see, tests/unit/shared and tests/contract show."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import DeadlockDetected, DistlockError, LockTimeout, advisory_lock
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import Actor, Face
from tests.contract.watching import waiting_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


class People:
    """Contexts and locks, by their letters."""

    def __init__(self, name: str) -> None:
        self.name, self.face = name, Face("sync")
        self.actors: dict[str, Actor] = defaultdict(self.face.actor)
        self.futures: dict[tuple[str, str], Future[Any]] = {}

    def takes(self, who: str, what: str, shared: bool = False, timeout: float | None = 0) -> None:
        lock = advisory_lock(self.name + what, using="memory", shared=shared)
        self.futures[who, what] = self.actors[who].start(lock, "acquire", timeout=timeout)
        if timeout == 0:
            self.futures[who, what].result(PATIENCE)

    def waits(self, who: str, what: str, shared: bool = False, timeout: float | None = None) -> None:
        before = waiting_here(self.name + what)
        self.takes(who, what, shared, timeout)
        eventually(lambda: waiting_here(self.name + what) == before + 1, f"{who} does not wait")

    def gives(self, who: str, what: str) -> None:
        """By this thread (R16): ``who`` may wait for another lock."""
        self.futures.pop((who, what)).result(PATIENCE).release()

    def inside(self) -> str:
        return "".join(sorted(who for (who, _), future in self.futures.items() if future.done()))

    def is_a_deadlock(self, who: str, what: str, shared: bool = False) -> None:
        self.takes(who, what, shared, timeout=None)
        with pytest.raises(DeadlockDetected, match="would never end"):
            self.futures.pop((who, what)).result(PATIENCE)

    def close(self) -> None:
        """Whoever is inside gives it back, until nobody waits: each has got what it waited for."""
        while self.futures:
            eventually(self.inside, f"these wait for ever: {list(self.futures)}")
            self.gives(*next(pair for pair, future in self.futures.items() if future.done()))
        self.face.close()


@pytest.fixture
def people(nothing_left: None, settings: Any, name: str) -> Iterator[People]:
    made = People(name)
    yield made
    made.close()


def test_r4_a_waiter_that_gives_up_lets_the_next_one_through(people: People) -> None:
    """A writer between readers: the reader behind it comes in."""
    people.takes("a", "x", shared=True)
    people.waits("b", "x", timeout=0.5)
    people.waits("c", "x", shared=True)
    with pytest.raises(LockTimeout):
        people.futures.pop(("b", "x")).result(PATIENCE)
    people.futures["c", "x"].result(PATIENCE)


def test_r23_a_lock_counts_once_however_many_readers_it_has(people: People, settings: Any) -> None:
    """The limit is that of the server, which keeps one entry for the readers of a session."""
    settings.DISTLOCK = {**settings.DISTLOCK, "memory": {**settings.DISTLOCK["memory"], "MAX_HELD": 2}}
    people.takes("a", "x")
    for reader in "bcde":
        people.waits(reader, "x", shared=True)
    people.takes("a", "y")
    with pytest.raises(DistlockError, match="MAX_HELD"):
        people.takes("a", "z")
    del people.futures["a", "z"]
    people.gives("a", "x")
    eventually(lambda: len(people.inside()) == 5, "not all readers are in")


def test_r8_a_circle_through_a_place_in_the_queue(people: People) -> None:
    """o stands behind c in the queue for x, and c waits, over the holder of x, for what o holds."""
    people.takes("h", "x")
    people.takes("o", "y")
    people.waits("c", "x")
    people.waits("h", "y")
    people.is_a_deadlock("o", "x")


def test_r8_a_reader_behind_a_writer_waits_for_the_readers_before_it(people: People) -> None:
    """t holds x shared and waits for y; w waits for x; who holds y asks for x shared: behind w, who waits for t."""
    people.takes("t", "x", shared=True)
    people.takes("o", "y")
    people.waits("t", "y")
    people.waits("w", "x")
    people.is_a_deadlock("o", "x", shared=True)


def test_r8_waiting_for_what_is_being_given_back_closes_no_circle(people: People, monkeypatch: Any) -> None:
    """Another thread gives the lease back (R16) while its owner asks anew: that ends by itself."""
    backend, answer, asked = registry.entry("memory").backend, threading.Event(), threading.Event()
    release = backend.release

    def slow(grant: Any) -> bool:
        asked.set()
        assert answer.wait(PATIENCE)
        return release(grant)

    people.takes("a", "x")
    people.takes("b", "y")
    people.waits("a", "y")
    with monkeypatch.context() as patch:
        patch.setattr(backend, "release", slow)
        given = people.actors["c"].start(people.futures.pop(("a", "x")).result(PATIENCE), "release")
        assert asked.wait(PATIENCE)
        people.waits("b", "x")
        answer.set()
        given.result(PATIENCE)
        people.futures["b", "x"].result(PATIENCE)


def test_r8_a_hold_that_has_just_ended_closes_no_circle(people: People, monkeypatch: Any) -> None:
    """Another thread gives the lease back (R16), and its owner asks anew in the moment between the end of the hold and
    the next look at the line, which only the next tick takes if an exception of a signal comes in between."""
    ended, look, end = threading.Event(), threading.Event(), lock_table.end

    def slowly(hold: Any) -> None:
        hold.state = State.ENDED
        ended.set()
        assert look.wait(PATIENCE)
        end(hold)

    people.takes("a", "x")
    with monkeypatch.context() as patch:
        patch.setattr(lock_table, "end", slowly)
        patch.setattr(lock_table, "settle", lambda: None)  # a tick
        given = people.actors["b"].start(people.futures.pop(("a", "x")).result(PATIENCE), "release")
        assert ended.wait(PATIENCE)
        people.waits("a", "x")  # not DeadlockDetected
        look.set()
        given.result(PATIENCE)
        people.futures["a", "x"].result(PATIENCE)


def test_r4_thousands_of_waiters_of_a_closed_event_loop_do_not_break_a_release(
    name: str, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next tick would end them; the release comes before that."""
    monkeypatch.setattr(keepalive, "_end_closed_loops", lambda: None)
    lock = advisory_lock(name, using="memory", timeout=None)
    lease, loop = lock.acquire(), asyncio.new_event_loop()

    async def queue() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(lock.aacquire()) for _ in range(2000)]
        await asyncio.sleep(0)
        assert waiting_here(name) == len(tasks)
        return tasks

    for task in loop.run_until_complete(queue()):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would tell of each
    loop.close()
    lease.release()  # not RecursionError
    again = lock.try_acquire()
    assert again is not None
    again.release()
