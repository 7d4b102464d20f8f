"""The thread that talks to ZooKeeper: nothing stops it, and nothing that stops another thread ends its session."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.exceptions import NotEmptyError

from django_distlock import BackendUnavailable, DistlockError, LockTimeout, advisory_lock
from django_distlock.backends.zookeeper import handler, queue
from django_distlock.backends.zookeeper.backend import IDLE_TIMEOUT
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.zookeeper.server import SESSION, USING, address, behind, clerk, nodes, path_of, session_of, use
from tests.faults.proxy import Proxy
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases")]


@pytest.fixture
def server() -> Iterator[Any]:
    with clerk() as client:
        yield client


def test_many_who_leave_while_there_is_no_connection(name: str, settings: Any, server: Any) -> None:
    """What they leave undone is done on the new connection, by the very thread that has to send it: with a byte in its
    socket pair for each it waited for ever for itself to read them."""
    count = 500
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=10)
        lease = advisory_lock(name, using=USING).acquire()
        backend, claim = registry.entry(USING).backend, Claim(key=registry.entry(USING).key(name))
        session = session_of(lease)

        async def main() -> None:
            tasks = [asyncio.create_task(backend.atry_acquire(claim, 60)) for _ in range(count)]
            await asyncio.to_thread(
                eventually, lambda: len(nodes(server, name)) == count + 1, "they are not all there", pause=0.02
            )
            proxy.blackhole()
            proxy.drop_clients()
            await asyncio.to_thread(eventually, lambda: session.state == "suspended", "it is not noticed")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(main())
        proxy.heal()
        proxy.cut()
        eventually(lambda: len(nodes(server, name)) == 1, "they stay in the queue")
        lease.release()
        registry.close()


def test_a_host_with_several_addresses(name: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them refuses: there are others. kazoo takes them in any order."""
    host, port = address()
    ask = socket.getaddrinfo

    def resolve(asked: Any, *args: Any, **kwargs: Any) -> Any:
        if asked != "several.example":
            return ask(asked, *args, **kwargs)
        return [*ask("127.0.0.3", *args, **kwargs), *ask(host, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    use(settings, hosts=f"several.example:{port}")
    for _ in range(8):
        with advisory_lock(name, using=USING, timeout=5):
            pass
        registry.close()


@pytest.mark.tier2
def test_a_slow_callback_ends_no_session(name: str, settings: Any) -> None:
    """The keepalive thread calls it, and looks after nothing else meanwhile."""
    kept = advisory_lock(f"{name}-kept", using=USING).acquire()
    broken = advisory_lock(name, using=USING).acquire()
    called, go_on = threading.Event(), threading.Event()

    def dawdle(lease: Any) -> None:
        called.set()
        go_on.wait(10)

    broken.on_lost(dawdle)
    backend = registry.entry(USING).backend
    (info,) = [info for info in backend.inspect() if info.fence == broken.fence]
    assert backend.break_lock(info)
    assert called.wait(5)
    until = monotonic() + SESSION * 1.2
    try:
        while monotonic() < until:
            assert kept.held
            time.sleep(0.05)
    finally:
        go_on.set()
    kept.release()


def test_r23_a_lock_that_was_broken_keeps_no_session(name: str) -> None:
    lease = advisory_lock(name, using=USING).acquire()
    backend = registry.entry(USING).backend
    (info,) = [info for info in backend.inspect() if info.fence == lease.fence]
    assert backend.break_lock(info)
    eventually(lambda: lease.lost, "it is not lost")
    backend.tick(monotonic() + 5.1)
    assert backend._session is None


def test_r23_attempts_that_do_not_connect_leave_nothing(name: str, settings: Any) -> None:
    with Proxy(*address()) as proxy:
        proxy.blackhole()
        behind(settings, proxy, session_timeout=30)
        for _ in range(3):
            with pytest.raises(BackendUnavailable):
                advisory_lock(name, using=USING).acquire(timeout=0.25)
        assert registry.entry(USING).backend._session.waiters._parkers == []
        began = monotonic()
        registry.close()
        within(monotonic() - began, 1)


def test_r6_hosts_without_an_address_are_said_at_once(name: str, settings: Any) -> None:
    use(settings, hosts="nowhere.invalid:2181")
    began = monotonic()
    with pytest.raises(BackendUnavailable, match="none of the hosts has an address"):
        advisory_lock(name, using=USING).acquire(timeout=5)
    within(monotonic() - began, 4)


def test_r7_an_interrupt_when_the_creation_was_just_sent(name: str, server: Any) -> None:
    """Before kazoo's answer to that could be noted. The session goes on, and so would the node."""
    lock = advisory_lock(name, using=USING)
    with lock as lease:
        session = session_of(lease)
    create = session.create_contender

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        create(*args, **kwargs)
        raise KeyboardInterrupt

    session.create_contender = interrupted
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    del session.create_contender
    eventually(lambda: nodes(server, name) == [], "a node stays behind", patience=IDLE_TIMEOUT - 1)


def test_r6_a_turn_that_comes_at_the_deadline_is_no_failure(name: str, settings: Any, server: Any) -> None:
    """The one before leaves, and there is no time left to hear whether it is our turn. On a busy machine this was one
    acquire in some hundreds, which said that the server had failed."""
    path = server.create(f"{path_of(name)}/{'0' * 32}-x-", b"", ephemeral=True, sequence=True, makepath=True)
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=10)
        with advisory_lock(f"{name}-warm", using=USING):
            pass
        took: list[BaseException | None] = []

        def wait() -> None:
            try:
                advisory_lock(name, using=USING).acquire(timeout=0.5)
            except DistlockError as error:
                took.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        watches = registry.entry(USING).backend._session.kazoo._data_watchers
        eventually(lambda: any(path in each for each in watches), "no waiter")
        proxy.swallow(1)
        server.delete(path)
        thread.join()
        assert [type(error) for error in took] == [LockTimeout]
        proxy.cut()
        registry.close()


def delete_all(server: Any, path: str) -> None:
    """Also while another client adds nodes below it."""
    for _ in range(20):
        try:
            return server.delete(path, recursive=True)
        except NotEmptyError:
            continue
    raise AssertionError(f"{path} is never empty")


def test_a_semaphores_waiter_under_whom_everything_is_deleted(name: str, server: Any) -> None:
    """Just before it looks: then it queues again, and there is no error."""
    site_key.load()
    backend: Any = registry.entry(USING).backend
    key = registry.entry(USING).key(name)
    assert backend.try_acquire(Claim(key=key, limit=1)) is not None
    kazoo = backend._session.kazoo
    for times in (1, 2):  # the queue is looked at for the second time, with a watch, or for the first
        look = kazoo.get_children_async

        def deleted(*args: Any, look: Any = look, times: list[int] = [times], **kwargs: Any) -> Any:  # noqa: B006
            times[0] -= 1
            if times[0] == 0:
                delete_all(server, path_of(name))
            return look(*args, **kwargs)

        kazoo.get_children_async = deleted
        grant = backend.try_acquire(Claim(key=key, limit=1), 5)
        del kazoo.get_children_async
        assert grant is not None


def test_r17_a_release_is_heard_though_the_session_was_not_used_for_long(name: str, settings: Any) -> None:
    """The keepalive thread closes a session that nobody uses. A lock that was held for long and is being released was
    lost to that: the answer came too late."""
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=30)
        lease = advisory_lock(name, using=USING).acquire()
        backend, session = registry.entry(USING).backend, session_of(lease)
        proxy.delay(0.3)
        releasing = threading.Thread(target=lease.release)
        session.used_at -= 60
        releasing.start()
        eventually(lambda: not session.held, "it is not released")
        backend.tick(monotonic())
        releasing.join()
        assert not lease.lost
        registry.close()


def test_r19_a_turn_on_a_session_that_has_ended_is_no_grant(
    name: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a sleep beyond the session, with the answer in the socket: others may hold the lock by now."""
    with advisory_lock(name, using=USING) as warm:
        session = session_of(warm)
    turn = queue.turn

    def late(*args: Any) -> Any:
        session.heard_at -= 2 * session.timeout
        return turn(*args)

    monkeypatch.setattr(queue, "turn", late)
    with advisory_lock(name, using=USING, timeout=10) as lease:
        assert lease.held
        assert session_of(lease) is not session


@pytest.mark.parametrize("fault", ["no thread", "no descriptor", "no pair of sockets"])
def test_r6_a_session_whose_thread_has_ended_is_followed_by_another(
    name: str, settings: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """At the limit of threads or of open files: that caller is told, and the next one does not wait for nobody."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("can't start new thread") if fault == "no thread" else OSError(24, "Too many open files")

    where: Any = {
        "no thread": (handler.Handler, "spawn"),
        "no descriptor": (socket, "getaddrinfo"),
        "no pair of sockets": (handler.Handler, "create_socket_pair"),
    }[fault]
    use(settings, session_timeout=30)
    lock = advisory_lock(name, using=USING)
    with monkeypatch.context() as patch:
        patch.setattr(*where, fail)
        began = monotonic()
        with pytest.raises(BackendUnavailable, match=r"can.t start new thread|Too many open files"):
            lock.acquire(timeout=5)
        within(monotonic() - began, 2)
    with lock:
        pass
    registry.close()


def test_r7_no_second_node_while_the_first_one_may_be_there(name: str, settings: Any, server: Any) -> None:
    """The answer to the creation is lost with its connection, and the look for the node takes beyond the deadline."""
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=30)
        lock = advisory_lock(name, using=USING)
        with lock as lease:
            session = session_of(lease)
        connected = session._connected

        def slow(*args: Any) -> None:
            proxy.delay(0.2)
            connected(*args)

        session._connected = slow
        for _ in range(4):
            proxy.heal()
            proxy.swallow(1, cut=True)
            with pytest.raises(BackendUnavailable):
                lock.acquire(timeout=0.3)
            proxy.heal()
            eventually(lambda: nodes(server, name) == [], "a node stays behind", patience=IDLE_TIMEOUT - 1)
        registry.close()
