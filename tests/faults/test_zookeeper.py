"""What may happen to a ZooKeeper session, and that the holder knows before the next one is let in."""

from __future__ import annotations

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from django_distlock import BackendUnavailable, LockLost, advisory_lock
from django_distlock.backends.zookeeper import handler, queue
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, share_and_write
from tests.engines.zookeeper.conftest import server
from tests.engines.zookeeper.server import USING, clerk, nodes, path_of, session_of, use
from tests.faults.conftest import Ears
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Proxy

__all__ = ["server"]
pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def proxy(proxied: Proxied) -> Proxy:
    return proxied(USING)


# R17, R18: who holds is told


@pytest.mark.tier2
def test_r18_in_a_partition_the_holder_knows_before_the_next_grant(name: str, proxy: Proxy, server: Any) -> None:
    lease = advisory_lock(name, using=USING).acquire()
    ears = Ears(lease)

    def look() -> float:
        last = 0.0
        while lease.held:
            last = time.monotonic()
            time.sleep(0.002)
        return last

    with Child(share_and_write, USING, name) as rival, ThreadPoolExecutor(1) as pool:
        assert rival.hear() == "asking"
        eventually(lambda: len(nodes(server, name)) == 2, "no waiter")
        proxy.blackhole()
        last = pool.submit(look)
        assert last.result() < rival.hear(), "two holders at once"
        rival.say()
    ears.told()
    with pytest.raises(LockLost):
        lease.release()
    proxy.heal()


@pytest.mark.tier2
def test_r18_a_connection_that_comes_back_brings_the_lock_back(name: str, proxy: Proxy, server: Any) -> None:
    lease = advisory_lock(name, using=USING).acquire()
    session = session_of(lease)
    proxy.blackhole()
    proxy.drop_clients()
    eventually(lambda: not lease.held, "it is not doubted")
    with pytest.raises(LockLost, match="ZooKeeper does not answer"):
        lease.ensure_held()
    assert not lease.lost
    proxy.heal()
    proxy.cut()
    eventually(lambda: lease.held, "it stays doubtful")
    assert session_of(lease) is session
    lease.ensure_held()
    lease.release()
    assert nodes(server, name) == []


def test_r18_an_answer_says_that_the_server_has_heard_the_request(name: str, proxy: Proxy) -> None:
    """And not that it hears us now: the session's time counts from before the request."""
    lease = advisory_lock(name, using=USING).acquire()
    session, held = session_of(lease), proxy.hold("reply")
    session.heard_at -= session.timeout / 4  # it asks for a sign of life
    heard_at = session.heard_at
    session.tick(monotonic())
    held.wait()
    before = monotonic()
    held.pass_on()
    eventually(lambda: session.heard_at > heard_at, "the answer does not count")
    assert session.heard_at <= before
    lease.release()


def test_r18_the_session_lives_as_long_as_the_server_says(name: str, settings: Any) -> None:
    """The server has a longest session, and ends it after that whatever was asked for."""
    wanted = 600.0
    use(settings, session_timeout=wanted)
    with advisory_lock(name, using=USING) as lease:
        session = session_of(lease)
        assert 0 < session.lost_at - session.heard_at < session.timeout < wanted


def test_r17_a_session_that_was_ended_is_told(name: str) -> None:
    leases = [advisory_lock(f"{name}{number}", using=USING).acquire() for number in range(3)]
    heard = [Ears(lease) for lease in leases]
    kazoo = session_of(leases[0]).kazoo
    for _ in range(5):  # the library's client may take the session back before the clerk has closed it
        with clerk(client_id=kazoo.client_id):
            pass  # which closes the session
        if heard[0].callback.wait(1):
            break
    for ears, lease in zip(heard, leases, strict=True):
        ears.told()
        assert lease.lost
    # and the next acquire has another session
    with advisory_lock(f"{name}0", using=USING) as lease:
        assert session_of(lease) is not session_of(leases[0])


# R5: silence is not busy


# R7: nothing is left behind


def test_r7_the_lost_reply_of_a_create_and_of_a_release(name: str, proxy: Proxy, server: Any) -> None:
    """Its connection breaks: the node is found again, and no second one is made."""
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()  # the node above is there now
    proxy.swallow(1, cut=True)
    lease = lock.acquire(timeout=10)
    (node,) = nodes(server, name)
    assert lease.fence == server.exists(f"{path_of(name)}/{node}").czxid
    proxy.swallow(1, cut=True)
    lease.release()
    assert nodes(server, name) == []


def test_r7_a_lost_reply_after_the_deadline_leaves_no_node(name: str, proxy: Proxy, server: Any) -> None:
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()
    proxy.swallow(1)
    with pytest.raises(BackendUnavailable):
        lock.acquire(timeout=0.2)
    proxy.heal()
    proxy.cut()
    eventually(lambda: nodes(server, name) == [], "a node stays behind")


def test_r7_no_second_node_beside_the_first(name: str, proxy: Proxy, server: Any, monkeypatch: Any) -> None:
    """The answer to the creation is lost with its connection, and the look for the node takes beyond the deadline."""
    lock = advisory_lock(name, using=USING)
    with lock as lease:
        session = session_of(lease)
    connect = session._connect

    def silent(*args: Any) -> Any:
        answer = connect(*args)
        proxy.blackhole()
        return answer

    for _ in range(2):
        monkeypatch.setattr(session, "_connect", silent)
        proxy.swallow(1, cut=True)
        with pytest.raises(BackendUnavailable):
            lock.acquire(timeout=0.5)
        monkeypatch.setattr(session, "_connect", connect)
        assert len(nodes(server, name)) <= 1
        proxy.heal()
        eventually(lambda: nodes(server, name) == [], "a node stays behind")


def test_r7_an_interrupt_between_a_request_and_its_wake_up(name: str, settings: Any, monkeypatch: Any) -> None:
    """Without the wake-up each request would wait for the next one, for as long as the session lives."""
    use(settings, session_timeout=1)
    lock = advisory_lock(name, using=USING, timeout=20)
    lock.acquire().release()
    with monkeypatch.context() as patch:

        def interrupted(*args: Any) -> None:
            patch.undo()
            raise KeyboardInterrupt

        for method in ("send", "ring"):
            patch.setattr(handler.Doorbell, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    with lock.acquire() as lease:
        queue = session_of(lease).kazoo._queue
        eventually(lambda: not queue, "a request waits for the next one")


@pytest.mark.tier2
def test_r7_a_first_waiter_whose_session_ends_queues_again(name: str, server: Any) -> None:
    """Its session began with this very acquire and ran out while the process was stopped. The server is there."""
    lease = advisory_lock(name, using=USING).acquire()
    with Child(share_and_write, USING, name) as sleeper:
        assert sleeper.hear() == "asking"
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait")
        sleeper.signal(signal.SIGSTOP)
        eventually(lambda: len(nodes(server, name)) == 1, "its session does not end")
        sleeper.signal(signal.SIGCONT)
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait again")
        lease.release()
        assert sleeper.hear() > 0
        sleeper.say()


@pytest.mark.tier2
@pytest.mark.parametrize("lost", ["watch", "request"])
def test_r7_a_waiter_whose_session_ends_while_it_asks_queues_again(
    name: str, proxy: Proxy, server: Any, lost: str, monkeypatch: Any
) -> None:
    """As after a sleep beyond the session. kazoo registers no watch while it is being closed, and answers nothing that
    is put into its queue then: whoever trusts it waits for ever."""
    with advisory_lock(f"{name}-warm", using=USING) as warm:
        session = session_of(warm)
    ended = threading.Event()
    get, wake_all = session.kazoo.get_async, session._wake_all

    def end(*args: Any) -> None:
        if not ended.is_set():
            ended.set()
            threading.Thread(target=session.end).start()
            eventually(lambda: session.state is session.ENDED, "not ended")
            threading.Thread(target=session.close).start()
            assert session.kazoo._stopped.wait(5)

    def wake_late() -> None:
        if lost == "watch":  # kazoo reads the answer first
            time.sleep(0.3)
        wake_all()

    def fail_next(*args: Any, **options: Any) -> Any:
        """The next thing that the waiter sends is the request for its watch."""
        if lost == "watch":
            proxy.on_request = end
        else:
            monkeypatch.setattr(session.kazoo, "_call", end)
        return get(*args, **options)

    def acquire() -> Any:
        with advisory_lock(name, using=USING, timeout=20) as lease:
            return session_of(lease)

    with held_elsewhere(USING, name) as let_go, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(session.kazoo, "get_async", fail_next)
        monkeypatch.setattr(session, "_wake_all", wake_late)
        waiting = pool.submit(acquire)
        eventually(ended.is_set, "the watch was not asked for")
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait again")
        let_go()
        assert waiting.result() is not session


# R6, R19


def test_r19_a_turn_on_a_session_that_has_ended_is_no_grant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a sleep beyond the session, with the answer in the socket: others may hold the lock by now."""
    with advisory_lock(name, using=USING) as warm:
        session = session_of(warm)
    turn = queue.turn

    def late(*args: Any) -> Any:
        session.heard_at -= 2 * session.timeout
        return turn(*args)

    monkeypatch.setattr(queue, "turn", late)
    with advisory_lock(name, using=USING, timeout=20) as lease:
        assert lease.held
        assert session_of(lease) is not session


NO_FILE = OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("where", "what", "error"),
    [
        pytest.param(handler.Handler, "spawn", RuntimeError("can't start new thread"), id="no thread"),
        pytest.param(socket, "getaddrinfo", NO_FILE, id="no descriptor"),
        pytest.param(handler.Handler, "create_socket_pair", NO_FILE, id="no pair of sockets"),
    ],
)
def test_r6_a_session_whose_thread_has_ended_is_followed_by_another(
    name: str, settings: Any, monkeypatch: Any, where: Any, what: str, error: Exception
) -> None:
    """At the limit of threads or of open files: that caller is told, and the next one does not wait for nobody."""
    use(settings, session_timeout=30)
    lock = advisory_lock(name, using=USING)
    with monkeypatch.context() as patch:
        patch.setattr(where, what, Mock(side_effect=error))
        with pytest.raises(BackendUnavailable, match=r"can.t start new thread|Too many open files"):
            lock.acquire(timeout=10)
    lock.acquire().release()
    registry.close()
