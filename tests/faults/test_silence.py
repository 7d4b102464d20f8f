"""R5, R6, R18: servers, name servers and networks that take what is sent and never answer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, LockLost, LockNotAcquired, advisory_lock, lock_all
from django_distlock.concurrency import background
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.engines.actors import held_elsewhere, waiting
from tests.faults.conftest import BACKENDS, Ears, database_alias
from tests.faults.server import DATABASES, SESSION_LOCKS, holders, waiters
from tests.support.network import Network, NoNetwork
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize(
    "using", [*SESSION_LOCKS, "leasetable_postgres", "leasetable_mariadb", "redis", "zookeeper"]
)
each_session = pytest.mark.parametrize("using", SESSION_LOCKS)
FAILURES = (BackendUnavailable, LockNotAcquired)  # it is not known which
TIMEOUT = 0.5


def in_vain(using: str, name: str, count: int) -> list[float]:
    """So many try at once for TIMEOUT, in a thread or a task or without waiting; the seconds that it took, sorted."""

    def attempt(number: int) -> float:
        lock = advisory_lock(f"{name}{number}", using=using)
        ways: list[Callable[[], Any]] = [
            lambda: lock.acquire(timeout=TIMEOUT),
            lambda: asyncio.run(lock.aacquire(timeout=TIMEOUT)),
            lambda: lock.acquire(timeout=0),
        ]
        began = time.monotonic()
        with pytest.raises(FAILURES):
            ways[number % 3]()
        return time.monotonic() - began

    with ThreadPoolExecutor(count) as pool:
        return sorted(pool.map(attempt, range(count)))


def works_again(using: str, name: str) -> bool:
    try:
        advisory_lock(name, using=using).acquire(timeout=5).release()
    except FAILURES:
        return False
    return True


@pytest.mark.tier2
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connecting"])
@each_engine
def test_r5_a_silent_server_costs_the_timeout_and_two_seconds(
    using: str, connected: bool, name: str, proxied: Proxied
) -> None:
    """Callers are told, and get their locks when it answers again."""
    proxy = proxied(using)
    if connected:
        connect(using)
    proxy.blackhole()
    took = in_vain(using, name, 12)
    within(took[-1], TIMEOUT + 2, what=took)
    proxy.heal()
    eventually(lambda: works_again(using, name), "no lock after the server came back")


@pytest.mark.tier2
@each_session
def test_r5_releases_that_hang_keep_no_task_waiting(using: str, name: str, proxied: Proxied) -> None:
    """Each of these locks was waited for, and so has a session of its own."""
    names = [f"{name}{number}" for number in range(5)]
    proxy = proxied(using)
    connect(using)
    sessions: Any = registry.entry(using).backend.sessions  # type: ignore[attr-defined]

    async def timed(call: Awaitable[object]) -> float:
        began = time.monotonic()
        with pytest.raises((LockLost, *FAILURES)):
            await call
        return time.monotonic() - began

    async def main(let_go: Callable[[], None]) -> list[float]:
        def all_wait() -> bool:
            return sum(bool(session.waits and session.claims) for session in sessions.all()) == len(names)

        tasks = [asyncio.create_task(advisory_lock(each, using=using).aacquire(timeout=20)) for each in names]
        await asyncio.to_thread(eventually, all_wait, "they do not wait")
        let_go()
        leases = await asyncio.gather(*tasks)
        proxy.blackhole()
        calls = [lease.arelease() for lease in leases]
        return await asyncio.gather(*map(timed, [*calls, advisory_lock(name, using=using).aacquire(timeout=0)]))

    with held_elsewhere(using, *names) as let_go:
        took = asyncio.run(main(let_go))
    within(max(took), 2.5, what=took)


@each_session
def test_r5_a_server_that_hangs_while_we_wait_in_its_queue(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    connect(using)
    with held_elsewhere(using, name) as let_go, waiting(using, name, 2) as acquiring:
        proxy.blackhole()
        assert isinstance(acquiring.exception(), FAILURES)
        let_go()
        proxy.cut()
        eventually(lambda: not holders(using, name), "held by a session that gave up")


def test_r5_a_cancel_is_heard_though_zookeeper_is_silent(name: str, proxied: Proxied) -> None:
    """Whether the node has gone is seen to behind the caller's back."""
    with held_elsewhere("zookeeper", name):
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
    eventually(lambda: works_again("zookeeper", name), "its node stays behind")


# R18: who holds a lock is told


@pytest.mark.tier2
@each_session
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
def test_r22c_a_silent_server_costs_the_leases_of_another_alias_nothing(
    name: str, settings: Any, proxied: Proxied
) -> None:
    """Its own leases are lost; each attempt to renew one of them waits for the server."""
    proxy, ttl = proxied("redis"), 6.0
    short = {using: {**settings.DISTLOCK[using], "TTL": ttl} for using in ("redis", "leasetable")}
    settings.DISTLOCK = {**settings.DISTLOCK, **short}
    doomed = lock_all([advisory_lock(f"{name}{number}", using="redis") for number in range(25)]).acquire()
    with advisory_lock(name, using="leasetable") as lease:
        proxy.blackhole()
        eventually(lambda: all(each.lost for each in doomed), "the leases of a dead server are not lost")
        until = time.monotonic() + ttl
        eventually(lambda: lease.lost or time.monotonic() > until, "the test stands still")
        lease.ensure_held()
    proxy.heal()
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
    threading.Thread(target=lambda: (link.hear(), network.die()), daemon=True).start()
    lock = advisory_lock(name, using=using, timeout=None)
    try:
        asyncio.run(lock.aacquire()) if in_a_task else lock.acquire()
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


# what connects, and what no driver lets go before a server or a name server has answered

MOST, TRIES = 2, 5


def connecting() -> int:
    ends = ("-open", "-connect", "-lookup")
    return sum(thread.name.endswith(ends) for thread in threading.enumerate())


@pytest.mark.parametrize("silent", ["mysql", "leasetable_postgres", "name server"])
def test_r5_threads_that_connect_do_not_pile_up(
    silent: str, proxied: Proxied, name: str, settings: Any, monkeypatch: Any
) -> None:
    """A name server that hangs is a server that does not answer. At the first of its two addresses nobody listens."""
    known, truth = threading.Event(), socket.getaddrinfo
    address = connections.settings["postgres"]["HOST"]

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "postgres.example":
            return truth(host, *args, **kwargs)
        known.wait(60)
        return [*truth("127.0.0.9", *args, **kwargs), *truth(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(background, "MAX_ABANDONED", MOST)
    with database_alias("named", "postgres", HOST="postgres.example"):
        options = {"database": "postgres", "session_database": "named"}
        alias = {"BACKEND": BACKENDS["postgres"], "OPTIONS": options}
        settings.DISTLOCK = {**settings.DISTLOCK, "name server": alias}
        proxy = None if silent == "name server" else proxied(silent)
        if proxy:
            proxy.blackhole()
        try:
            for _ in range(TRIES):
                with pytest.raises(BackendUnavailable):
                    advisory_lock(name, using=silent).acquire(timeout=0.1)
            assert 0 < connecting() <= MOST
        finally:
            known.set()
        if proxy:
            proxy.heal()
            proxy.cut()
        eventually(lambda: not connecting(), "a thread is left behind")
        with advisory_lock(name, using=silent, timeout=10) as lease:
            lease.ensure_held()
        registry.close()
