"""Several processes on one lease table: no lost update, the dead are passed over, a fork leaves its parent alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import warnings
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock, held_locks
from django_distlock.backends.leasetable.records import GRACE
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.support.processes import PATIENCE, Child
from tests.support.sizes import be_polite
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

USING = ("leasetable", "leasetable_postgres", "leasetable_mariadb")
PROCESSES = 8
LONGEST = 60.0  # seconds: the crowd is polite, and gets next to no time on a busy machine
pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def count(link: Any) -> None:
    """In a child: add ``rounds`` to the number in a file, as often as told, with a lock around each read and write; or
    less, if the time is over before that."""
    be_polite()
    link.say("ready")
    while (job := link.hear()) is not None:
        lock = advisory_lock(job["name"], using=job["using"], timeout=60) if job["using"] else nullcontext()
        counter = os.open(job["path"], os.O_RDWR)
        done, until = 0, time.monotonic() + LONGEST
        while done < job["rounds"] and time.monotonic() < until:
            with lock:
                number = int(os.pread(counter, 8, 0))
                os.sched_yield()
                os.pwrite(counter, b"%08d" % (number + 1), 0)
            done += 1
        os.close(counter)
        link.say(done)


@pytest.fixture(scope="module")
def crowd(django_db_setup: None) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(count)) for _ in range(PROCESSES)]
        for child in children:
            assert child.hear() == "ready"
        yield children
        for child in children:
            child.say(None)


def counted(crowd: list[Child], using: str | None, name: str, path: Path, rounds: int) -> tuple[int, int]:
    """The number, and what it should be."""
    path.write_text(f"{0:08d}")
    for child in crowd:
        child.say({"using": using, "name": name, "path": str(path), "rounds": rounds})
    done = sum(child.hear(LONGEST + PATIENCE) for child in crowd)
    return int(path.read_text()), done


@pytest.mark.parametrize("using", USING)
def test_r1_no_update_is_lost(crowd: list[Child], using: str, name: str, tmp_path: Path) -> None:
    rounds = 250 if using == "leasetable" else 25
    number, done = counted(crowd, using, name, tmp_path / "counter", rounds)
    assert number == done
    assert done >= PROCESSES * rounds / 10, "too few rounds to meet each other"
    assert not [info for report in held_locks(using) for info in report.locks if info.name == name]


def test_without_a_lock_updates_are_lost(crowd: list[Child], name: str, tmp_path: Path) -> None:
    """The counter can fail."""
    tries = (counted(crowd, None, name, tmp_path / "counter", 250) for _ in range(20))
    assert any(number < done for number, done in tries)


def hold(link: Any, using: str, name: str, ttl: float) -> None:
    with advisory_lock(name, using=using, ttl=ttl):
        link.say("held")
        link.hear()


def wait(link: Any, using: str, name: str) -> None:
    threading.Thread(target=lambda: advisory_lock(name, using=using, timeout=60).acquire(), daemon=True).start()
    link.say("waits")
    link.hear()


def waiters(using: str, name: str) -> int:
    return sum(info.waiters or 0 for report in held_locks(using) for info in report.locks if info.name == name)


@pytest.mark.parametrize("using", USING)
def test_a_killed_holder_is_followed_after_the_ttl(using: str, name: str) -> None:
    ttl = 2.0
    with Child(hold, using, name, ttl) as child:
        assert child.hear() == "held"
        with pytest.raises(LockTimeout):
            advisory_lock(name, using=using).acquire(timeout=1.5 * ttl)  # it is renewed while it lives
        child.kill()
        killed = time.monotonic()
        advisory_lock(name, using=using).acquire(timeout=10).release()
        within(time.monotonic() - killed, ttl + 0.5, least=0.3 * ttl)


@pytest.mark.parametrize("using", USING)
def test_a_killed_waiter_is_passed_over(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using, timeout=10)
    lease = lock.acquire()
    with Child(wait, using, name) as child:
        assert child.hear() == "waits"
        eventually(lambda: waiters(using, name) == 1, "the child does not wait")
        child.kill()
    lease.release()
    began = time.monotonic()
    lock.acquire().release()
    within(time.monotonic() - began, GRACE + 0.5)


def forked(work: Any) -> str:
    """Run ``work`` in a fork; what it returns, or the error."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12, because of the keepalive thread
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize("using", USING)
def test_r22_a_fork_leaves_the_parent_s_lease_alone(using: str, name: str) -> None:
    lease = advisory_lock(name, using=using).acquire()
    session = getattr(registry.entry(using).backend.store, "_session", None)  # type: ignore[attr-defined]

    def child() -> str:
        lease.release()
        mine = advisory_lock(f"{name} child", using=using).acquire()
        seen = (lease.held, advisory_lock(name, using=using).try_acquire(), mine.held)
        mine.release()
        registry.close()
        return str(seen)

    for _ in range(3):
        assert forked(child) == "(False, None, True)"
    assert lease.held
    assert registry.entry(using).backend.verify(lease._grant)
    assert getattr(registry.entry(using).backend.store, "_session", None) is session  # type: ignore[attr-defined]
    lease.release()


def open_lease_files() -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += os.readlink(link).endswith(("-distlock", "-distlock-wal", "-distlock-shm"))
    return found


def test_r22_a_child_inherits_no_sqlite_connection(name: str) -> None:
    """POSIX locks are the process's: a connection inherited, or closed, would break the parent's."""
    with advisory_lock(name, using="leasetable"):
        assert open_lease_files() > 0
        assert forked(open_lease_files) == "0"


def occupy(link: Any) -> None:
    """In a child: be the one writer of the lease file."""
    connection = sqlite3.connect(f"{connections['default'].settings_dict['NAME']}-distlock", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    link.say("occupied")
    link.hear()
    connection.execute("ROLLBACK")
    connection.close()


def test_r5_a_writer_that_stands_still_is_not_waited_for(name: str) -> None:
    lock = advisory_lock(name, using="leasetable")
    lock.acquire().release()
    with Child(occupy) as child:
        assert child.hear() == "occupied"
        child.signal(signal.SIGSTOP)
        for timeout, limit in ((0.0, 0.5), (0.7, 0.7)):
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match="locked") as caught:
                lock.acquire(timeout=timeout)
            within(time.monotonic() - began, limit + 0.2, least=limit)
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        child.signal(signal.SIGCONT)
        child.say()
        lock.acquire(timeout=5).release()
