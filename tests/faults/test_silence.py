"""R5, R6, R18: servers, name servers and networks that take what is sent and never answer."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, LockLost, LockNotAcquired, advisory_lock, lock_all
from django_distlock.concurrency import abandoned_calls
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.engines.actors import hold
from tests.engines.redis.server import BACKEND, Own
from tests.faults.conftest import BACKENDS, database_alias
from tests.faults.server import DATABASES, SESSION_LOCKS, holders, waiters
from tests.faults.test_loss import Ears
from tests.support.network import Network, NoNetwork
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")
DATABASE_LOCKS = [*SESSION_LOCKS, "leasetable_postgres", "leasetable_mariadb"]
each_engine = pytest.mark.parametrize("using", [*DATABASE_LOCKS, "redis", "zookeeper"])
FAILURES = (BackendUnavailable, LockNotAcquired)  # it is not known which
TIMEOUT = 0.5


def in_vain(using: str, name: str, kind: int) -> float:
    """Try for TIMEOUT in a thread or a task, or without waiting; the seconds that it took."""
    lock = advisory_lock(f"{name}{kind}", using=using)
    ways: list[Callable[[], Any]] = [
        lambda: lock.acquire(timeout=TIMEOUT),
        lambda: asyncio.run(lock.aacquire(timeout=TIMEOUT)),
        lambda: lock.acquire(timeout=0),
    ]
    began = time.monotonic()
    with pytest.raises(FAILURES):
        ways[kind % 3]()
    return time.monotonic() - began


def works_again(using: str, name: str) -> bool:
    try:
        advisory_lock(name, using=using).acquire(timeout=5).release()
    except FAILURES:
        return False
    return True


@pytest.mark.parametrize(
    "connected", [True, pytest.param(False, marks=pytest.mark.tier2)], ids=["connected", "connecting"]
)
@each_engine
def test_r5_a_silent_server(using: str, connected: bool, name: str, proxied: Proxied) -> None:
    """Callers are told, and get their locks when it answers again."""
    proxy = proxied(using)
    if connected:
        connect(using)
    proxy.blackhole()
    with ThreadPoolExecutor(3) as pool:
        assert len(list(pool.map(lambda kind: in_vain(using, name, kind), range(3)))) == 3
    proxy.heal()
    eventually(lambda: works_again(using, name), "no lock after the server came back")


@pytest.mark.alone
@each_engine
def test_r5_a_silent_server_costs_no_more_than_the_timeout(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    connect(using)
    proxy.blackhole()
    with ThreadPoolExecutor(12) as pool:
        took = sorted(pool.map(lambda kind: in_vain(using, name, kind), range(12)))
    within(took[-1], TIMEOUT + 1, what=took)


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r5_a_server_that_hangs_while_we_wait_in_its_queue(using: str, name: str, proxied: Proxied) -> None:
    with Child(hold, using, name) as child, ThreadPoolExecutor(1) as pool:
        assert child.hear() == "held"
        proxy = proxied(using)
        connect(using)
        waiting = pool.submit(lambda: advisory_lock(name, using=using).acquire(timeout=2))
        eventually(lambda: waiters(using, name), "nobody waits")
        proxy.blackhole()
        assert isinstance(waiting.exception(), FAILURES)
        child.say()
        assert child.hear() == "released"
        proxy.cut()
        eventually(lambda: not holders(using, name), "held by a session that gave up")


@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r5_a_reply_that_breaks_off_in_the_middle(using: str, name: str, proxied: Proxied) -> None:
    """The first bytes of the reply arrive, so that there is something to read, and the rest does not."""
    proxy = proxied(using)
    connect(using)
    connect(using)
    proxy.swallow(1, passing=7)
    with suppress(FAILURES):
        advisory_lock(name, using=using).acquire(timeout=0.5).release()
    proxy.cut()
    eventually(lambda: works_again(using, name), "no lock after the connection was cut")


def test_r5_a_cancel_is_heard_though_zookeeper_is_silent(name: str, proxied: Proxied) -> None:
    """Whether the node has gone is seen to behind the caller's back."""
    with Child(hold, "zookeeper", name) as child:
        assert child.hear() == "held"
        proxy = proxied("zookeeper")
        connect("zookeeper")
        asked = proxy.requests

        async def main() -> None:
            task = asyncio.create_task(advisory_lock(name, using="zookeeper").aacquire(timeout=60))
            await asyncio.to_thread(eventually, lambda: proxy.requests > asked + 1, "it does not wait")
            proxy.blackhole()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)

        asyncio.run(main())
        proxy.heal()
        child.say()
        assert child.hear() == "released"
    eventually(lambda: works_again("zookeeper", name), "its node stays behind")


# R18: who holds a lock is told


@pytest.mark.alone
@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r18_a_silent_server_is_a_loss_within_seven_seconds(using: str, name: str, proxied: Proxied) -> None:
    """R17, R18: nobody asks anything; the heartbeat finds out and tells. Measured from the last reply."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    proxy.blackhole()
    within(ears.told(time.monotonic()), 7.0)
    for ask in (lease.ensure_held, lease.release):
        with pytest.raises(LockLost):
            ask()


@pytest.mark.tier2
@pytest.mark.parametrize("using", SESSION_LOCKS)
def test_r18_a_statement_that_hangs_is_the_end_of_its_session(using: str, name: str, proxied: Proxied) -> None:
    """Another lock's statement meets the silence first: all locks of the session are lost, sooner than by heartbeat."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using).acquire()
    ears = Ears(lease)
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(FAILURES):
        advisory_lock(name + "-other", using=using).acquire(timeout=TIMEOUT)
    within(ears.told(began), 4.0)
    with pytest.raises((BackendUnavailable, LockLost)):
        lease.release()


@pytest.mark.tier2
def test_r20_a_silent_server_costs_the_leases_of_another_alias_nothing(
    name: str, settings: Any, tmp_path: Path
) -> None:
    """Its own leases are lost; each attempt to renew one of them waits for the server."""
    ttl = 6.0
    with Own(tmp_path) as own:
        settings.DISTLOCK = {
            "silent": {"BACKEND": BACKEND, "TTL": ttl, "OPTIONS": {"url": own.url}},
            "healthy": {**settings.DISTLOCK["leasetable"], "TTL": ttl},
        }
        doomed = lock_all([advisory_lock(f"{name}{n}", using="silent") for n in range(25)]).acquire()
        with advisory_lock(name, using="healthy") as lease:
            own.signal(signal.SIGSTOP)
            try:
                eventually(lambda: all(each.lost for each in doomed), "the leases of a dead server are not lost")
                until = monotonic() + ttl
                eventually(lambda: lease.lost or monotonic() > until, "the test stands still")
                lease.ensure_held()
            finally:
                own.signal(signal.SIGCONT)
        with pytest.raises(LockLost):
            doomed.release()


# R5: a wait without a timeout, of which nobody would ever say that it is over


def wait_without_end(link: Any, using: str, name: str, in_a_task: bool) -> None:
    try:
        network = Network()
    except NoNetwork as error:
        link.say(str(error))
        return
    server = connections.settings[DATABASES[using]]
    server["PORT"] = str(network.relay(server["HOST"], int(server["PORT"])))
    link.say("asking")

    def die_when_told() -> None:
        link.hear()
        network.die()

    threading.Thread(target=die_when_told, daemon=True).start()
    lock = advisory_lock(name, using=using)
    try:
        if in_a_task:
            asyncio.run(lock.aacquire(timeout=None))
        else:
            lock.acquire(timeout=None)
    except BackendUnavailable as error:
        link.say(str(error))


@pytest.mark.tier2
@pytest.mark.parametrize(("using", "in_a_task"), [("postgres", False), ("mysql", True)])
def test_r5_a_wait_without_end_on_a_dead_network_ends(using: str, in_a_task: bool, name: str) -> None:
    with advisory_lock(name, using=using), Child(wait_without_end, using, name, in_a_task) as child:
        said = child.hear()
        if said != "asking":
            pytest.skip(f"no process may have a network of its own here: {said}")
        eventually(lambda: waiters(using, name), "it does not wait")
        child.say("die")
        assert f"alias '{using}'" in child.hear(60)


@pytest.mark.tier2
def test_r5_a_wait_without_end_for_a_silent_server_ends(name: str, proxied: Proxied) -> None:
    """It accepts the connection, and nothing more."""
    silent = ["mysql", "leasetable_postgres"]
    for using in silent:
        proxied(using).blackhole()

    def wait(using: str) -> BaseException | None:
        with pytest.raises(BackendUnavailable) as error:
            advisory_lock(name, using=using).acquire(timeout=None)
        return error.value

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(wait, silent, timeout=60))


# what connects, and what no driver lets go before a server or a name server has answered

MOST, TRIES = 2, 5


def connecting() -> int:
    ends = ("-open", "-connect", "-lookup")
    return sum(thread.name.endswith(ends) for thread in threading.enumerate())


def try_in_vain(using: str, name: str) -> None:
    for _ in range(TRIES):
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using=using).acquire(timeout=0.1)
    assert 0 < connecting() <= MOST


@pytest.mark.parametrize("using", ["mysql", "leasetable_postgres"])
def test_threads_that_connect_do_not_pile_up(
    using: str, proxied: Proxied, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_calls, "MAX_ABANDONED", MOST)
    proxy = proxied(using)
    proxy.blackhole()
    try_in_vain(using, name)
    proxy.heal()
    proxy.cut()
    eventually(lambda: not connecting(), "a thread is left behind")
    advisory_lock(name, using=using).acquire(timeout=10).release()


def test_r5_a_name_server_that_hangs(name: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a server that does not answer. Then there are two addresses, at the first of which nobody listens."""
    known, truth = threading.Event(), socket.getaddrinfo
    address = connections.settings["postgres"]["HOST"]

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "postgres.example":
            return truth(host, *args, **kwargs)
        known.wait(60)
        return [*truth("127.0.0.9", *args, **kwargs), *truth(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(abandoned_calls, "MAX_ABANDONED", MOST)
    with named(settings, HOST="postgres.example"):
        try:
            try_in_vain("named", name)
        finally:
            known.set()
        eventually(lambda: not connecting(), "a thread is left behind")
        with advisory_lock(name, using="named", timeout=10) as lease:
            lease.ensure_held()
        registry.close()


@contextmanager
def named(settings: Any, **changes: Any) -> Iterator[None]:
    """The lock alias "named": PostgreSQL at another address."""
    with database_alias("named", "postgres", **changes):
        options = {"database": "postgres", "session_database": "named"}
        settings.DISTLOCK = {**settings.DISTLOCK, "named": {"BACKEND": BACKENDS["postgres"], "OPTIONS": options}}
        yield
        registry.close()
