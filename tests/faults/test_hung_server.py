"""R5 and R18 against a server that acknowledges packets and never answers.

The first test shows what a driver does there on its own: nothing, for as long as one cares to wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import connections, transaction

from django_distlock import BackendUnavailable, LockLost, LockNotAcquired, advisory_lock
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, holders, waiters
from tests.faults.test_loss import Ears
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
each_backend = pytest.mark.parametrize("using", [*SESSION_LOCKS, "leasetable_postgres", "leasetable_mariadb"])

TIMEOUT = 0.5
LATEST = TIMEOUT + 0.05  # R5
TRIES = 12


def test_the_bare_driver_waits_for_ever(proxied: Proxied) -> None:
    """The fault that is guarded against: lock_timeout is the server's, and the server hangs."""
    proxy = proxied("postgres")
    parameters = connections["postgres_proxied"].get_connection_params()
    known = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{key: parameters[key] for key in known if key in parameters}) as connection:
        connection.execute("SET lock_timeout = 100")
        proxy.blackhole()
        answered = threading.Event()

        def naive() -> None:
            try:
                connection.execute("SELECT pg_try_advisory_lock(1)")
            except psycopg.Error:
                return
            answered.set()

        thread = threading.Thread(target=naive, daemon=True)
        thread.start()
        thread.join(1.0)
        assert thread.is_alive(), "the driver gave up by itself: no fault to guard against"
        proxy.cut()
        thread.join(10)
    assert not answered.is_set()


def times_of(asked: Callable[[int], Any]) -> list[float]:
    """Seconds that each of TRIES concurrent calls took; each must fail as busy or unavailable."""
    times: list[float] = []

    def call(number: int) -> None:
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, LockNotAcquired)):
            asked(number)
        times.append(time.monotonic() - began)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(TRIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(times) == TRIES
    return sorted(times)


def times_of_tasks(name: str, using: str) -> list[float]:
    async def call(number: int) -> float:
        began = time.monotonic()
        with pytest.raises((BackendUnavailable, LockNotAcquired)):
            await advisory_lock(f"{name}{number}", using=using).aacquire(timeout=TIMEOUT)
        return time.monotonic() - began

    async def work() -> list[float]:
        return await asyncio.gather(*(call(number) for number in range(TRIES)))

    return sorted(asyncio.run(work()))


def within_the_contract(times: list[float]) -> None:
    within(times[-1], LATEST, what=[f"{each:.3f}" for each in times])


@each_backend
def test_r5_a_server_that_hangs_with_a_session_open(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    with advisory_lock(name, using=using):
        pass
    proxy.blackhole()
    within_the_contract(times_of(lambda n: advisory_lock(f"{name}{n}", using=using).acquire(timeout=TIMEOUT)))
    proxy.heal()
    eventually(lambda: works_again(name, using), "no lock after the server came back")


def works_again(name: str, using: str) -> bool:
    try:
        advisory_lock(name, using=using).acquire(timeout=2).release()
    except (BackendUnavailable, LockNotAcquired):
        return False
    return True


@each_backend
def test_r5_connecting_to_a_server_that_hangs(using: str, name: str, proxied: Proxied) -> None:
    proxied(using).blackhole()
    within_the_contract(times_of(lambda n: advisory_lock(f"{name}{n}", using=using).acquire(timeout=TIMEOUT)))


@each_backend
def test_r5_tasks_and_a_server_that_hangs_with_a_session_open(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    with advisory_lock(name, using=using):
        pass
    proxy.blackhole()
    within_the_contract(times_of_tasks(name, using))
    proxy.heal()
    eventually(lambda: works_again(name, using), "no lock after the server came back")


@each_backend
def test_r5_tasks_connecting_to_a_server_that_hangs(using: str, name: str, proxied: Proxied) -> None:
    proxied(using).blackhole()
    within_the_contract(times_of_tasks(name, using))


@each_engine
def test_r5_a_server_that_hangs_while_we_wait_in_its_queue(using: str, name: str, proxied: Proxied) -> None:
    """Also on a name that is known to be busy, for which there is a short cut."""
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        proxy = proxied(using)
        # long enough for a first session, which is part of the caller's time
        assert advisory_lock(name, using=using).try_acquire(timeout=2) is None
        began: list[float] = []
        ended: list[float] = []

        def wait() -> None:
            began.append(time.monotonic())
            with pytest.raises((BackendUnavailable, LockNotAcquired)):
                advisory_lock(name, using=using).acquire(timeout=TIMEOUT)
            ended.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: waiters(using, name), "nobody waits")
        proxy.blackhole()
        thread.join(10)
        within(ended[0] - began[0], LATEST)
        child.say()
        assert child.hear() == "released"
        proxy.cut()
        eventually(lambda: not holders(using, name), "held by a session that gave up")


@each_engine
def test_r5_many_threads_for_one_name_and_a_server_that_hangs(using: str, name: str, proxied: Proxied) -> None:
    """They queue in the process; who has its turn at the end of its time must not begin to wait for the server."""
    proxy = proxied(using)
    with advisory_lock(name + "-first", using=using):
        pass
    proxy.blackhole()
    within_the_contract(times_of(lambda n: advisory_lock(name, using=using).acquire(timeout=TIMEOUT)))


@pytest.mark.tier2
@pytest.mark.parametrize("timeout", [3.2, 0.5, 0.1, 0])
@each_backend
def test_r5_other_timeouts_and_a_server_that_hangs(using: str, timeout: float, name: str, proxied: Proxied) -> None:
    """Above 3 s the watchdog has time to end the statement, which must not begin the wait anew. Only a caller that does
    not wait gives the server half a second."""
    proxy = proxied(using)
    with advisory_lock(name, using=using):
        pass
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises((BackendUnavailable, LockNotAcquired)):
        advisory_lock(name, using=using).acquire(timeout=timeout)
    within(time.monotonic() - began, (timeout or 0.5) + 0.05)


@each_engine
@pytest.mark.parametrize("timeout", [0.5, 5])
def test_r5_a_reply_that_breaks_off_in_the_middle(using: str, timeout: float, name: str, proxied: Proxied) -> None:
    """The first bytes of the reply arrive, so that there is something to read, and the rest does not. Other threads go
    on meanwhile: the driver must not wait for the rest without letting them run."""
    proxy = proxied(using)
    for _ in range(2):
        with advisory_lock(name, using=using):
            pass
    proxy.swallow(1, passing=7)
    began = time.monotonic()
    outcome = advisory_lock(name, using=using)
    try:
        outcome.acquire(timeout=timeout).release()
        within(time.monotonic() - began, timeout)  # on a new session, the old one having been given up
    except (BackendUnavailable, LockNotAcquired):
        within(time.monotonic() - began, max(timeout, 2.5 if using == "mysql" else 0.5) + 0.05)
    proxy.cut()
    eventually(lambda: works_again(name, using), "no lock after the connection was cut")


@pytest.mark.parametrize("held", [False, True])
def test_r5_a_server_that_hangs_under_the_callers_transaction(
    name: str, held: bool, proxied: Proxied, settings: Any
) -> None:
    """The lock goes over the user's own connection, on which libpq itself would wait for hours."""
    proxy = proxied("postgres")
    backend = settings.DISTLOCK["postgres"]["BACKEND"]
    options = {"database": "postgres_proxied"}
    settings.DISTLOCK = {**settings.DISTLOCK, "postgres": {"BACKEND": backend, "OPTIONS": options}}
    times: list[float] = []

    def body() -> None:
        with transaction.atomic(using="postgres_proxied"):
            if held:
                advisory_lock(name + "-before", using="postgres").acquire()
            else:
                connections["postgres_proxied"].ensure_connection()
            proxy.blackhole()
            began = time.monotonic()
            try:
                advisory_lock(name, using="postgres").acquire(timeout=TIMEOUT)
            finally:
                times.append(time.monotonic() - began)
                proxy.heal()  # at the end of atomic() Django connects anew, with the patience of the driver

    with pytest.raises(BackendUnavailable):
        body()
    within_the_contract(times)


@pytest.mark.tier2
@each_engine
def test_r18_a_silent_server_is_a_loss_within_seven_seconds(using: str, name: str, proxied: Proxied) -> None:
    """R17, R18: nobody asks anything; the heartbeat finds out and tells. Measured from the last reply."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    proxy.blackhole()
    within(ears.told(time.monotonic()), 7.0)
    assert lease.lost
    with pytest.raises(LockLost):
        lease.ensure_held()
    with pytest.raises(LockLost):
        lease.release()


@pytest.mark.tier2
@each_engine
def test_r18_a_statement_that_hangs_is_the_end_of_its_session(using: str, name: str, proxied: Proxied) -> None:
    """Another lock's statement meets the silence first: all locks of the session are lost, sooner than by heartbeat."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises((BackendUnavailable, LockNotAcquired)):
        advisory_lock(name + "-other", using=using).acquire(timeout=TIMEOUT)
    within(ears.told(began), 4.0)
    with pytest.raises(LockLost):
        lease.release()


@each_engine
def test_a_release_to_a_silent_server_ends(using: str, name: str, proxied: Proxied) -> None:
    """A release has no timeout of its own: it ends with the statement limit, says that it failed, and frees the name
    for the next one of this process."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises((BackendUnavailable, LockLost)):
        lease.release()
    within(time.monotonic() - began, 5.0)
    assert not lease.held
    proxy.cut()
    proxy.heal()
    eventually(lambda: not holders(using, name), "still held")
    with advisory_lock(name, using=using, timeout=5):
        pass
