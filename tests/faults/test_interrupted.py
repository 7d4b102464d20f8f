"""R7: KeyboardInterrupt at any place of an acquire or a release at which Python looks for signals leaves nothing held.

"Nothing held" is true after one tick of the keepalive thread, which these tests do themselves: they interrupt at some
hundred places, and a tick takes half a second.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connections
from django.db.transaction import atomic

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock, lock_all, semaphore, signals
from django_distlock.backends import memory
from django_distlock.backends.mysql import session as mysql_session
from django_distlock.backends.postgres import session as postgres_session
from django_distlock.backends.redis import backend as redis
from django_distlock.backends.sessions import backend as sessions_backend
from django_distlock.backends.sessions import session as sessions_session
from django_distlock.concurrency import flow, parking
from django_distlock.concurrency import places as places_module
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import Parker
from django_distlock.locks import lease, lock, lockset
from django_distlock.manager import acquire, interrupted, name_log, open_transactions, release, transactions
from django_distlock.manager import lock_table as lock_table_module
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.lock_table import LockTable, interrupted_calls, lock_table
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.server import holders, lock_sessions
from tests.support.interrupts import Interrupter, interrupted_everywhere
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.flow import Flow
    from django_distlock.manager.lock_table import Hold

# A second, and what a busy machine adds.
LATE = 3.0

pytestmark = pytest.mark.usefixtures("databases")


class TimeLimit(Exception):
    """That of a task, raised by a signal handler."""


CORE = (acquire, lock_table_module, lease, lock, lockset, open_transactions, release, signals, transactions, flow)


def tick() -> None:
    """What the keepalive thread does within a second."""
    interrupted.look()
    eventually(lambda: not any(thread.name == "distlock-release" for thread in threading.enumerate()), "not through")


class Attempts:
    """One acquire after the other; what was got is given back, and then nothing may be left."""

    def __init__(self, using: str, *kept: Any) -> None:
        self.backend: Any = registry.entry(using).backend
        self.kept = kept
        self.got: list[Any] = []

    def everywhere(self, acquire: Callable[[], Any], *more: Any) -> int:
        self.got.append(acquire())  # whatever is done but once is done here
        self.clean()
        return interrupted_everywhere(lambda: self.got.append(acquire()), self.clean, *CORE, *more)

    def clean(self) -> None:
        while self.got:
            got = self.got.pop()
            if got is not None:
                got.release()
        tick()
        assert not interrupted_calls
        held = [lease._hold for lease in self.kept]
        assert list(lock_table.everything()) == held
        assert all(hold.leases == {lease} for hold, lease in zip(held, self.kept, strict=True))
        assert lock_table._total == len(lock_table._slots) == len(held)
        assert not lock_table._waiting
        assert not lock.open_blocks._open
        if self.backend.alias == "memory":
            assert sum(map(len, self.backend._entries.values())) == len(held)
        else:
            assert sum(sum(session.held.values()) for session in self.backend.sessions.all()) == len(held)


WAYS: dict[str, Callable[[str, str], Any]] = {
    "lock": lambda using, name: advisory_lock(name, using=using, timeout=None).acquire(),
    "try": lambda using, name: advisory_lock(name, using=using).try_acquire(),
    "shared": lambda using, name: advisory_lock(name, using=using, shared=True).acquire(),
    "semaphore": lambda using, name: semaphore(name, 2, using=using).acquire(),
    "set": lambda using, name: lock_all([name, name + "2"], using=using).acquire(),
}


RECIPES: dict[str, Callable[[str, str], Any]] = {
    "lock": lambda using, name: advisory_lock(name, using=using),
    "try": lambda using, name: advisory_lock(name, using=using),
    "shared": lambda using, name: advisory_lock(name, using=using, shared=True),
    "semaphore": lambda using, name: semaphore(name, 2, using=using),
    "set": lambda using, name: lock_all([name, name + "2"], using=using),
}


@pytest.mark.parametrize(
    ("using", "way"), [*(("memory", way) for way in WAYS), *(("postgres", way) for way in ("lock", "try", "shared"))]
)
def test_r7_an_interrupt_leaves_nothing_held(using: str, way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_log, "LOOK", math.inf)  # names are written down on a session of their own
    if using == "postgres":  # the server lists what a test before has closed for a while
        eventually(lambda: not lock_sessions(using), "sessions of other tests")
    attempts = Attempts(using)
    assert attempts.everywhere(lambda: WAYS[way](using, name), memory) > 20
    if using == "postgres":
        assert not holders(using, name)
        assert len(lock_sessions(using)) == 1, "and no session was lost for it"


@pytest.mark.parametrize(
    ("using", "way"), [*(("memory", way) for way in WAYS), *(("postgres", way) for way in ("lock", "shared"))]
)
@pytest.mark.parametrize("how", ["release", "with lease", "with lock"])
def test_r7_an_interrupted_release_is_finished(using: str, way: str, how: str, name: str) -> None:
    """At all places but one: the entrance of the function."""
    attempts = Attempts(using)
    recipes: list[Any] = []
    entered: list[Any] = []

    def enter() -> None:
        if how == "with lock":
            recipes.append(RECIPES[way](using, name))
            recipes[-1].__enter__()
            entered.append(recipes[-1])
        else:
            entered.append(WAYS[way](using, name))

    def leave() -> None:
        if how == "release":
            entered.pop().release()
        else:
            entered.pop().__exit__(None, None, None)

    at = 1
    while True:
        enter()
        interrupter = Interrupter(at, *CORE, memory)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(leave)
        try:
            attempts.clean()
        except BaseException as error:
            error.add_note(f"Interrupted at place {at}: {interrupter.place}.")
            raise
        if interrupter.place is None:
            break
        at += 1
    assert at > 20
    if using == "postgres":
        assert not holders(using, name)


def test_r1_an_interrupted_exit_leaves_the_later_blocks_of_the_lock_alone(name: str) -> None:
    """A lock object may be used by many contexts: what was to be released is found, and nothing else."""
    lock = advisory_lock(name, using="memory", shared=True)
    attempts = Attempts("memory")
    at, place = 1, ""
    while place is not None:
        lock.__enter__()
        interrupter = Interrupter(at, *CORE, memory)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(lambda: lock.__exit__(None, None, None))
        place = interrupter.place
        thread = threading.Thread(target=lock.__enter__)
        thread.start()
        thread.join()
        tick()
        assert [hold.owner for hold in lock_table.held()] == [thread], f"Interrupted at place {at}: {place}."
        lock.__exit__(None, None, None)
        attempts.clean()
        at += 1
    assert at > 20


@pytest.mark.parametrize("using", ["memory", "postgres", "redis", "leasetable", "mysql", "zookeeper", "redlock"])
def test_r7_the_keepalive_thread_finishes_it_within_a_second(using: str, name: str) -> None:
    """Of every engine: interrupted right behind the engine's answer, and in a release before the engine is asked."""
    lock = advisory_lock(name, using=using)
    lock.acquire().release()
    with pytest.raises(KeyboardInterrupt):
        interrupted_in(acquire._establish, lock.acquire)
    within_a_second(lambda: not lock_table.all())
    lease = lock.acquire(timeout=1)
    with pytest.raises(KeyboardInterrupt):
        interrupted_in(release.give_back_fast, lease.release)
    within_a_second(lambda: not lock_table.all())
    with lock.acquire(timeout=1):
        pass


def test_r7_a_soft_time_limit_is_no_answer_of_the_engine(name: str) -> None:
    """Celery's and RQ's are Exceptions: a release that one of them ends is finished like any other."""
    attempts = Attempts("memory")
    recipe = advisory_lock(name, using="memory")
    at, place = 1, ""
    while place is not None:
        recipe.__enter__()
        interrupter = Interrupter(at, *CORE, memory, error=TimeLimit)
        with contextlib.suppress(TimeLimit):
            interrupter.run(lambda: recipe.__exit__(None, None, None))
        place = interrupter.place
        attempts.clean()
        at += 1
    assert at > 20
    assert interrupted_everywhere(
        lambda: attempts.got.append(recipe.acquire()), attempts.clean, *CORE, memory, error=TimeLimit
    )


def test_r1_an_interrupted_release_is_finished_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the engine takes: a second one might find the next holder's lock."""
    lease, backend = advisory_lock(name, using="memory").acquire(), registry.entry("memory").backend
    with pytest.raises(KeyboardInterrupt):
        interrupted_in(release.give_back_fast, lease.release)
    asked: list[Any] = []
    answer, asks = threading.Event(), backend.release

    def slow(grant: Any) -> bool:
        asked.append(grant)
        answer.wait(10)
        return asks(grant)

    monkeypatch.setattr(backend, "release", slow)
    for _ in range(4):
        interrupted.look()
    eventually(lambda: asked, "not finished")
    answer.set()
    eventually(lambda: not lock_table.all(), "not finished")
    assert len(asked) == 1


def test_r1_an_interrupt_behind_a_release_takes_no_lock_from_another_reader(name: str) -> None:
    """All readers of a process may be on one session, whose server counts unlocks."""
    lock = advisory_lock(name, using="postgres", shared=True)
    readers: list[Any] = []
    thread = threading.Thread(target=lambda: readers.append(lock.acquire()))
    thread.start()
    thread.join()
    lease = lock.acquire()
    with pytest.raises(KeyboardInterrupt):
        interrupted_in(LockTable.end, lease.release)
    tick()
    assert [hold.owner for hold in lock_table.held()] == [thread]
    assert len(holders("postgres", name)) == 1
    readers[0].release()


@pytest.mark.parametrize("fast", [True, False])
def test_r1_an_interrupt_within_a_release_takes_no_lock_from_another_reader(
    name: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any place of the backend, too: the other reader keeps its lock, or learns that it is lost."""
    recipe = advisory_lock(name, using="postgres", shared=True)
    backend: Any = registry.entry("postgres").backend
    if not fast:
        monkeypatch.setattr(type(backend), "release_fast", lambda self, grant: False)
    others: list[Any] = []

    def read() -> None:
        thread = threading.Thread(target=lambda: others.append(recipe.acquire()))
        thread.start()
        thread.join()

    place: str | None = ""
    number = 2
    while place is not None:
        if not others:
            read()
        lease = recipe.acquire()
        interrupter = Interrupter(number, *CORE, sessions_backend, sessions_session, postgres_session)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(lease.release)
        place = interrupter.place
        tick()
        kept = others[0].held
        assert [hold.owner for hold in lock_table.all()] == [other.owner for other in others if kept], place
        if kept:
            assert holders("postgres", name), f"interrupted at {place}: the lock of another reader is gone"
        else:
            others.clear()
            registry.close()
        number += 1
    for other in others:
        other.release()
    assert not holders("postgres", name)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit], ids=lambda it: it.__name__)
@pytest.mark.parametrize(
    ("using", "way"), [("postgres", "lock"), ("postgres", "try"), ("postgres", "shared"), ("mysql", "lock")]
)
def test_r7_an_interrupt_within_the_backend_loses_no_grant(using: str, way: str, error: type, name: str) -> None:
    """Nor the mutex of a session, without which this process gets no lock any more."""
    attempts = Attempts(using)
    modules = sessions_backend, sessions_session, postgres_session, mysql_session, parking, flow
    registry.close()  # the sessions of tests before
    attempts.got.append(WAYS[way](using, name))

    def clean() -> None:
        attempts.clean()
        eventually(lambda: not holders(using, name), "held")
        # a mutex that is lost is lost for ever; this machine stands still for seconds at times
        advisory_lock(f"{name}-next", using=using, timeout=10).acquire().release()

    def acquire() -> None:
        attempts.got.append(WAYS[way](using, name))

    clean()
    assert interrupted_everywhere(acquire, clean, *modules, error=error) > 10
    registry.close()  # other tests count the sessions


def test_r11_a_lock_that_is_acquired_again_is_kept_for_the_transaction(name: str) -> None:
    """Of an acquire that was interrupted, whose lock its context has acquired a second time before it was given up."""
    lock = advisory_lock(name, using="redis")
    with atomic("default"):
        with pytest.raises(KeyboardInterrupt):
            interrupted_in(open_transactions.listen_for_begin, lock.acquire)
        lock.acquire(timeout=1).release()
        tick()
        assert [hold.key.name for hold in lock_table.held()] == [name]
    assert not lock_table.all()


@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_r7_an_interrupted_end_of_a_transaction_is_finished(using: str, name: str) -> None:
    """Of the lock in the transaction, and of one that was kept for it."""
    block: Any = None
    lock, other = (advisory_lock(f"{name}-{number}", using=using) for number in range(2))
    database = "postgres" if using == "postgres" else "default"

    def begin() -> None:
        nonlocal block
        block = atomic(database)
        block.__enter__()
        lock.acquire()  # released by the end alone
        other.acquire().release()

    def clean() -> None:
        connections[database].close()  # as at the end of a request, if the interrupt has left it open
        tick()
        assert not lock_table.all()
        assert not holders(using, lock.name)
        begin()

    def end() -> None:
        with contextlib.suppress(DatabaseError):  # an interrupt before COMMIT: Django cannot switch autocommit on again
            block.__exit__(None, None, None)

    begin()
    assert interrupted_everywhere(end, clean, transactions, lock_table_module) > 20
    end()


@pytest.mark.parametrize("function", [acquire._establish, acquire.open_transactions], ids=lambda it: it.__name__)
def test_r8_an_interrupted_acquire_is_no_deadlock_for_the_next(function: Any, name: str) -> None:
    lock = advisory_lock(name, using="memory")
    with advisory_lock(f"{name}-other", using="memory"):
        with pytest.raises(KeyboardInterrupt):
            interrupted_in(function, lock.acquire)
        lock.acquire(timeout=LATE).release()


def test_r8_an_interrupted_waiter_is_no_deadlock_for_the_next(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    leases: list[Any] = []
    thread = threading.Thread(target=lambda: leases.append(lock.acquire()))
    thread.start()
    thread.join()
    with advisory_lock(f"{name}-other", using="memory"):
        with pytest.raises(KeyboardInterrupt):
            interrupted_in(Parker.park, lock.acquire)
        with pytest.raises(LockTimeout):
            lock.acquire(timeout=0.01)
    leases[0].release()
    within_a_second(lambda: not lock_table.all())


def interrupted_in(function: Any, call: Callable[[], Any]) -> None:
    """Call with KeyboardInterrupt raised at the entrance of a function."""

    def trace(frame: Any, event: str, argument: object) -> None:
        if frame.f_code is function.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def within_a_second(condition: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < LATE, "not within a second"
        time.sleep(0.01)


@pytest.mark.parametrize("started", [False, True])
def test_r20_an_interrupted_start_of_the_keepalive_thread(
    name: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.close()
    eventually(lambda: not keepalive.running, "the thread goes on without work")
    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        if started:
            start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            advisory_lock(name, using="memory").acquire()
    with advisory_lock(f"{name}-next", using="memory"):
        assert keepalive.thread is not None
        assert keepalive.thread.is_alive()
        within_a_second(lambda: len(lock_table.all()) == 1)


def test_r7_an_interrupt_at_the_entrance_of_a_with_block(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    attempts = Attempts("memory")

    def enter() -> None:
        lock.__enter__()
        attempts.got.append(SimpleNamespace(release=lambda: lock.__exit__(None, None, None)))

    assert interrupted_everywhere(enter, attempts.clean, *CORE, memory) > 20


def test_r7_an_interrupted_reentry_is_not_counted(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    with lock.acquire() as lease:
        assert Attempts("memory", lease).everywhere(lock.acquire) > 20


def test_r7_an_interrupted_waiter_is_out_of_the_queue(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    leases: list[Any] = []
    thread = threading.Thread(target=lambda: leases.append(lock.acquire()))
    thread.start()
    thread.join()

    def wait() -> None:
        with pytest.raises(LockNotAcquired):
            lock.acquire(timeout=0.001)

    assert interrupted_everywhere(wait, Attempts("memory", *leases).clean, *CORE) > 20
    leases[0].release()


def test_r7_an_interrupted_hand_over_reaches_the_next() -> None:
    """In the queue of this process: bookkeeping that is cut off is finished."""

    def given(world: World) -> list[Hold]:
        return [world.hold("a", "x"), *(world.wait(owner, "x") for owner in "bc")]

    world = World()
    first, *waiters = given(world)

    def clean() -> None:
        nonlocal first, waiters
        world.lock_table.mend()
        assert [waiter.parker is not None and waiter.parker.woken for waiter in waiters] == [True, False]
        for waiter in waiters:
            world.grant(waiter)
            world.give(waiter)
        assert world.empty
        first, *waiters = given(world)

    # but for the very first place, the entrance of the function
    assert interrupted_everywhere(lambda: world.lock_table.end(first), clean, lock_table_module, first=1) > 5


@pytest.mark.parametrize("crowded", [False, True])
def test_r7_an_interrupt_takes_no_place_along(crowded: bool) -> None:
    """Of those that one process has in the queues of a Redis server."""
    places, other = places_module.Places(1), places_module.Place()
    if crowded:
        assert places.take(other)
    backend: Any = SimpleNamespace(_places=places, _asked=nothing, _waited=nothing)
    attempt: Any = SimpleNamespace(sent=True)

    def clean() -> None:
        assert (places._taken, places._queue) == ({other} if crowded else set(), [])

    def ask() -> None:
        until = time.monotonic() + 0.001
        run(redis.RedisBackend._queued(backend, attempt, until))

    assert interrupted_everywhere(ask, clean, redis, places_module) > 10


def nothing(*args: Any) -> Flow[None]:
    """No answer, and nobody asked."""
    yield from ()
