"""R7: Ctrl-C and the soft time limit of a task leave nothing held: on memory at every place at which an acquire or a
release looks for signals, on each engine at three gates and at every place of its own, and inside a transaction."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, connections, transaction

from django_distlock import DistlockError, advisory_lock, lock_all, semaphore
from django_distlock.backends import memory
from django_distlock.backends.postgres import session as postgres_session
from django_distlock.backends.sessions import backend, pool, session
from django_distlock.concurrency import flow, leftovers
from django_distlock.exceptions import DeadlockDetected
from django_distlock.locks import lease, lock, lockset
from django_distlock.manager import acquire, open_transactions, release, transactions
from django_distlock.manager import keepalive as keepalive_module
from django_distlock.manager import lock_table as lock_table_module
from django_distlock.manager.keepalive import keepalive, renew
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, connect, eventually
from tests.engines.actors import held_elsewhere
from tests.faults.server import DATABASES, holders, waiters
from tests.support.interrupts import interrupted_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.faults.conftest import Proxied

pytestmark = [
    pytest.mark.usefixtures("databases"),
    # of generators that were interrupted while they were closed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CORE = (
    acquire,
    keepalive_module,
    lock_table_module,
    lease,
    lock,
    lockset,
    open_transactions,
    release,
    transactions,
    flow,
    memory,
)


class TimeLimit(Exception):
    """That of a task, raised by a signal handler."""


def tick() -> None:
    """Until the keepalive thread has worked off what is left."""
    begun = threading.Event()
    leftovers.leave(begun.set)
    keepalive.ensure()
    assert begun.wait(PATIENCE), "not begun"  # the jobs before it have their threads by now
    eventually(lambda: not any(thread.name == "distlock-release" for thread in threading.enumerate()), "not through")
    lock_table.settle()  # as at the next tick


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def free(name: str) -> None:
    """Also to others, and nobody keeps anything."""
    tick()
    assert not lock_table.all()
    in_thread(lambda: lock_all([name, name + "2"], using="memory").acquire(timeout=0).release())


RECIPES: dict[str, Callable[[str], Any]] = {
    "lock": lambda name: advisory_lock(name, using="memory"),
    "shared": lambda name: advisory_lock(name, using="memory", shared=True),
    "semaphore": lambda name: semaphore(name, 1, using="memory"),
    "set": lambda name: lock_all([name, name + "2"], using="memory"),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
@pytest.mark.parametrize("block", [False, True], ids=["lease", "block"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_r7_an_interrupt_leaves_nothing_held(recipe: str, block: bool, error: type[BaseException], name: str) -> None:
    """Of an acquire or a release; also at the beginning and at the end of a block."""
    got: list[Callable[[], object]] = []

    def begin() -> None:
        lock = RECIPES[recipe](name)
        if block:
            lock.__enter__()
        got.append((lambda: lock.__exit__(None, None, None)) if block else lock.acquire().release)

    def clean() -> None:
        while got:
            got.pop()()
        free(name)

    def clean_and_begin() -> None:
        clean()
        begin()

    assert interrupted_everywhere(begin, clean, *CORE, error=error) > 20
    begin()
    # but for the very first place, the entrance of the function
    assert interrupted_everywhere(lambda: got.pop()(), clean_and_begin, *CORE, first=1, error=error) > 5
    clean()


def test_r7_an_interrupted_reentry_is_not_counted(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    got: list[Any] = []

    def clean() -> None:
        while got:
            got.pop().release()
        tick()
        assert held.held
        assert in_thread(lock.try_acquire) is None

    held = lock.acquire()
    assert interrupted_everywhere(lambda: got.append(lock.acquire()), clean, *CORE) > 20
    held.release()
    free(name)


def test_r7_an_interrupted_waiter_is_out_of_the_queue(name: str) -> None:
    lock = advisory_lock(name, using="memory")
    held = in_thread(lock.acquire)

    def clean() -> None:
        tick()
        assert lock_table.all() == lock_table.held()

    assert interrupted_everywhere(lambda: lock.try_acquire(timeout=0.001), clean, *CORE) > 20
    held.release()
    free(name)


@pytest.mark.parametrize("refused", [False, True], ids=["busy", "refused"])
def test_r7_an_interrupted_clean_up_of_several_leaves_nothing_held(refused: bool, name: str) -> None:
    """The first lock is there; the second is held by another context, or by this one in a way that is an error."""
    readers = advisory_lock(f"{name}2", using="memory", shared=True)
    held = readers.acquire() if refused else in_thread(readers.acquire)

    def several() -> None:
        with suppress(DeadlockDetected):
            assert lock_all([name, f"{name}2"], using="memory").try_acquire() is None

    def clean() -> None:
        tick()
        assert lock_table.all() == [held._hold]

    assert interrupted_everywhere(several, clean, *CORE) > 20
    held.release()


def test_r1_an_interrupted_exit_leaves_the_later_block_of_another_alone(name: str) -> None:
    """A lock object may be used by many contexts: what was to be released is found, and nothing else."""
    lock = advisory_lock(name, using="memory", shared=True)

    def leave() -> None:
        lock.__exit__(None, None, None)

    def clean() -> None:
        in_thread(lock.__enter__)
        tick()
        assert len(lock_table.held()) == 1
        leave()
        free(name)
        lock.__enter__()

    lock.__enter__()
    assert interrupted_everywhere(leave, clean, *CORE, first=1) > 5
    leave()


def test_r1_an_interrupted_release_is_finished_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the engine takes: a second one might find the next holder's lock."""
    lease, backend = advisory_lock(name, using="memory").acquire(), registry.entry("memory").backend
    asked: list[Any] = []
    answer, asks = threading.Event(), backend.release

    def slow(grant: Any) -> bool:
        asked.append(grant)
        if len(asked) == 1:
            raise KeyboardInterrupt
        assert answer.wait(PATIENCE)
        return asks(grant)

    monkeypatch.setattr(backend, "release", slow)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    eventually(lambda: len(asked) == 2, "not finished")
    keepalive.wake_at(0)
    answer.set()
    eventually(lambda: not lock_table.all(), "not finished")
    assert len(asked) == 2


def interrupt(call: Callable[[], Any], when: Callable[[], object], then: Callable[[], object] = lambda: None) -> None:
    """Ctrl-C in this thread while ``call`` runs."""

    def send() -> None:
        when()
        os.kill(os.getpid(), signal.SIGINT)
        then()

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        with pytest.raises(KeyboardInterrupt):
            call()
        sent.result()


@pytest.mark.parametrize(
    "gate",  # on databases a session is ended after two seconds
    [pytest.param("request", marks=pytest.mark.tier2), "reply", pytest.param("release", marks=pytest.mark.tier2)],
)
@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres", "redis", "zookeeper"])
def test_r7_an_interrupt_within_the_engine_loses_no_grant(using: str, gate: str, name: str, proxied: Proxied) -> None:
    """Others get in without waiting for the end of the process, and this one goes on."""
    proxy = proxied(using)
    connect(using)
    lock = advisory_lock(name, using=using)
    lock.acquire(timeout=10).release()
    call = lock.acquire(timeout=10).release if gate == "release" else lambda: lock.acquire(timeout=20)
    held = proxy.hold("request" if gate == "request" else "reply")
    interrupt(call, held.wait)
    held.pass_on()
    for suffix in ("", "-next"):
        in_thread(lambda suffix=suffix: advisory_lock(name + suffix, using=using).acquire(timeout=25).release())
    assert not lock_table.all()


@pytest.mark.parametrize("using", DATABASES)
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeated"])
def test_r11_an_interrupt_inside_atomic_leaves_nothing_held(
    using: str, repeated: bool, name: str, settings: Any, proxied: Proxied
) -> None:
    """After the block, whether it gives up or goes on and takes the lock once more, others have the lock."""
    proxy, alias = proxied(using), f"{DATABASES[using]}_proxied"
    here = {**settings.DISTLOCK[using], "OPTIONS": {"database": alias, "session_database": alias}}
    settings.DISTLOCK = {**settings.DISTLOCK, "here": here}
    lock = advisory_lock(name, using="here", timeout=20)
    try:
        with transaction.atomic(using=alias):
            advisory_lock(f"{name}-first", using="here").acquire()
            held = proxy.hold("reply")
            interrupt(lock.acquire, held.wait, held.pass_on)
            if repeated:
                assert lock.acquire().held
    except (Error, DistlockError):
        assert using == "postgres", "the block may be broken only where the server says so"
    eventually(lambda: not lock_table.all(), "it stays in the table")
    in_thread(lambda: advisory_lock(name, using=using, timeout=20).acquire().release())


ON_SESSIONS = (backend, pool, session, postgres_session)


def test_r1_a_release_interrupted_anywhere_takes_no_lock_from_another_reader(name: str) -> None:
    """Whether the server had the unlock is not known: the readers of the session keep their lock, or are told."""
    readers = advisory_lock(name, using="postgres", shared=True)
    held = {"other": in_thread(readers.acquire), "mine": readers.acquire()}

    def clean() -> None:
        tick()
        if held["other"].lost:
            held["other"] = in_thread(readers.acquire)
        assert holders("postgres", name), "the lock of another reader is gone"
        if not held["mine"].held:
            held["mine"] = readers.acquire()

    assert interrupted_everywhere(lambda: held["mine"].release(), clean, *ON_SESSIONS) > 5
    for each in held.values():
        each.release()


def test_r7_an_acquire_interrupted_anywhere_leaves_nothing_held_on_a_session(name: str) -> None:
    lock, got = advisory_lock(name, using="postgres"), []

    def clean() -> None:
        while got:
            got.pop().release()
        tick()
        assert not lock_table.all()
        eventually(lambda: not holders("postgres", name), "it is held")

    lock.acquire().release()
    assert interrupted_everywhere(lambda: got.append(lock.acquire(timeout=0)), clean, *ON_SESSIONS) > 5
    with held_elsewhere("postgres", f"{name}2"):
        other = advisory_lock(f"{name}2", using="postgres")
        assert interrupted_everywhere(lambda: other.try_acquire(timeout=0.001), tick, *ON_SESSIONS) > 10
        tick()
        eventually(lambda: not waiters("postgres", f"{name}2"), "it waits on")
    assert not holders("postgres", f"{name}2")


MODULES = {
    "leasetable": "backend sqlite statements",
    "redis": "attempt backend server",
    "redlock": "attempt backend node round",
    "zookeeper": "backend queue session",
}


@pytest.mark.parametrize("using", MODULES)
def test_r7_a_lease_interrupted_anywhere_is_given_back(using: str, name: str) -> None:
    """Long before its TTL; also between the answer of the engine and its caller."""
    options: Any = {} if using == "zookeeper" else {"ttl": 600}
    lock = advisory_lock(name, using=using, timeout=PATIENCE, **options)
    modules = [import_module(f"django_distlock.backends.{using}.{module}") for module in MODULES[using].split()]

    def clean() -> None:
        tick()
        assert not lock_table.all()
        in_thread(lambda: lock.acquire().release())

    lock.acquire().release()
    assert interrupted_everywhere(lambda: lock.acquire().release(), clean, *modules) > 20


@pytest.mark.parametrize(
    ("error", "started", "using", "options"),
    [
        pytest.param(KeyboardInterrupt(), False, "memory", {}, id="before"),
        pytest.param(KeyboardInterrupt(), True, "memory", {}, id="after"),
        # as at a limit of processes; on the short way of an acquire, and on the long one
        pytest.param(RuntimeError("can't start new thread"), False, "redis", {}, id="no thread"),
        pytest.param(RuntimeError("can't start new thread"), False, "redis", {"ttl": 6.0}, id="no thread-ttl"),
    ],
)
def test_r16_r20_nothing_is_acquired_that_nobody_looks_after(
    name: str, error: BaseException, started: bool, using: str, options: Any, monkeypatch: Any
) -> None:
    """The keepalive thread does not start, or the caller is interrupted while it does; the next one is looked after."""
    registry.close()
    eventually(lambda: keepalive.thread is None, "the thread goes on without work")
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if started or not thread.name.startswith("distlock-keepalive"):
            start(thread)
        if thread.name.startswith("distlock-keepalive"):
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for number in range(1 if started else 2):
            with pytest.raises(type(error)):
                advisory_lock(f"{name}{number}", using=using, **options).acquire(timeout=10)
    with advisory_lock(f"{name}-next", using=using, **options) as lease:
        assert keepalive.thread is not None
        eventually(lambda: len(lock_table.all()) == 1, "not given back")
        lease.ensure_held()


@pytest.mark.parametrize(("around", "step"), [(nullcontext, 7), (transaction.atomic, 23)])
def test_garbage_in_the_midst_of_bookkeeping(name: str, around: Callable[[], Any], step: int) -> None:
    """A generator that holds a lock is closed as garbage in a thread that may have the mutex which its end needs."""
    left = -1

    def leave_garbage() -> None:
        def inside() -> Generator[None, None, None]:
            with around(), advisory_lock(f"{name}2", using="memory"):
                yield

        cycle: list[Any] = [inside()]
        next(cycle[0])
        cycle.append(cycle)

    def collect(frame: Any, event: str, argument: object) -> None:
        nonlocal left
        left -= "django_distlock" in frame.f_code.co_filename
        if left == -1:
            gc.collect()

    def work() -> int:
        nonlocal left
        for at in range(1, 10_000, step):
            leave_garbage()
            left = at
            sys.setprofile(collect)
            advisory_lock(name, using="memory").acquire().release()
            sys.setprofile(None)
            gc.collect()
            eventually(lambda: not lock_table.all(), "still held")
            connections.close_all()
            if left > 0:
                return at
        return 0

    gc.disable()
    try:
        assert in_thread(work) > 20
    finally:
        gc.enable()


def test_r11_a_generator_that_was_closed_does_not_free_what_its_context_acquires_next(name: str) -> None:
    """Another thread gives back what it had, a moment later; of a transaction that begins meanwhile nothing."""
    lock = advisory_lock(name, using="memory", timeout=PATIENCE)
    kept = advisory_lock(f"{name}2", using="memory")

    def inside() -> Generator[None, None, None]:
        with transaction.atomic(), lock:
            yield

    def work() -> None:
        for _ in range(20):
            generator = inside()
            next(generator)
            generator.close()
            with transaction.atomic(), lock:
                kept.acquire().release()
                tick()
                assert in_thread(lock.try_acquire) is in_thread(kept.try_acquire) is None
        connections.close_all()

    in_thread(work)


def test_r17_a_renewal_in_the_midst_of_a_release_is_no_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the lock back already, and the release is about to hear of it."""
    backend: Any = registry.entry("memory").backend
    lease = advisory_lock(name, using="memory").acquire()
    told: list[Any] = []
    lease.on_lost(told.append)

    def release(grant: Any) -> bool:
        result: bool = type(backend).release(backend, grant)
        thread = threading.Thread(target=lambda: flow.run(renew(lease._hold, 30)))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return result

    monkeypatch.setattr(backend, "release", release)
    lease.release()
    assert (told, lease.lost) == ([], False)
