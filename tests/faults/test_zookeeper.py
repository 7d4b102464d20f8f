"""What may happen to a ZooKeeper session, and that the holder knows before the next one is let in."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from django_distlock import BackendUnavailable, LockLost, LockNotAcquired, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.engines.zookeeper.server import SESSION, USING, address, behind, clerk, nodes, session_of
from tests.faults.proxy import Proxy
from tests.faults.test_loss import Ears
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases"), pytest.mark.tier2]

# The server ends a session up to a tick late.
TICK = 0.2


@pytest.fixture
def server() -> Iterator[Any]:
    with clerk() as client:
        yield client


@pytest.fixture
def proxy(settings: Any) -> Iterator[Proxy]:
    with Proxy(*address()) as proxy:
        behind(settings, proxy)
        yield proxy
        registry.close()


def get(link: Any, name: str) -> None:
    """Wait for the lock and say when it came, on the clock that all processes share."""
    link.say("asking")
    with advisory_lock(name, using=USING, timeout=20):
        link.say(time.monotonic())


def watch_over(lease: Any) -> tuple[threading.Thread, list[float]]:
    """A thread that notes when the lease was last held."""
    last: list[float] = [time.monotonic()]

    def look() -> None:
        while lease.held:
            last[0] = time.monotonic()
            time.sleep(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    return thread, last


def test_r18_in_a_partition_the_holder_knows_before_the_next_grant(name: str, proxy: Proxy, server: Any) -> None:
    """kazoo says nothing in all that time; its lock is "acquired" when another has it."""
    bare = KazooClient(hosts=f"127.0.0.1:{proxy.port}", timeout=SESSION)
    bare.start()
    naive = bare.Lock("/naive-lock")
    naive.acquire()
    lease = advisory_lock(name, using=USING).acquire()
    ears = Ears(lease)
    with Child(get, name) as rival:
        assert rival.hear() == "asking"
        eventually(lambda: len(nodes(server, name)) == 2, "no waiter")
        cut = time.monotonic()
        proxy.blackhole()
        thread, last = watch_over(lease)
        granted = rival.hear()
        thread.join()
        assert last[0] < granted, "two holders at once"
        within(granted - cut, SESSION + TICK + 1)  # I9
    assert naive.is_acquired, "kazoo knows by itself: no fault to guard against"
    ears.told(cut)
    assert lease.lost
    with pytest.raises(LockLost):
        lease.release()
    proxy.heal()
    bare.stop()
    bare.close()


def test_a_connection_that_comes_back_brings_the_lock_back(name: str, settings: Any, server: Any) -> None:
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=10)
        lease = advisory_lock(name, using=USING).acquire()
        session = session_of(lease)
        proxy.cut()
        eventually(lambda: session.state == "connected" and not session.in_doubt(), "it does not connect again")
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
        registry.close()


def test_r18_an_answer_says_that_the_server_has_heard_the_request(name: str, settings: Any) -> None:
    """And not that it hears us now: the session's time counts from before the request."""
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=10)
        lease = advisory_lock(name, using=USING).acquire()
        proxy.delay(0.3)
        before = monotonic()
        assert registry.entry(USING).backend.verify(lease._grant)
        assert monotonic() - before >= 0.3
        assert session_of(lease).heard_at < before + 0.2
        proxy.delay(0)
        lease.release()
        registry.close()


def test_r18_the_session_lives_as_long_as_the_server_says(name: str, settings: Any) -> None:
    """The server has a longest session, and ends it after that whatever was asked for."""
    wanted = 600.0
    with Proxy(*address()) as proxy:
        behind(settings, proxy, session_timeout=wanted)
        lease = advisory_lock(name, using=USING).acquire()
        session = session_of(lease)
        assert 0 < session.lost_at - session.heard_at < session.timeout < wanted
        lease.release()
        registry.close()


def test_r17_a_session_that_was_ended_is_told(name: str, server: Any) -> None:
    leases = [advisory_lock(f"{name}{number}", using=USING).acquire() for number in range(3)]
    heard = [Ears(lease) for lease in leases]
    kazoo = session_of(leases[0]).kazoo
    for _ in range(5):  # the library's client may take the session back before the clerk has closed it
        ended = time.monotonic()
        with clerk(client_id=kazoo.client_id):
            pass  # which closes the session
        if heard[0].callback.wait(1):
            break
    for ears, lease in zip(heard, leases, strict=True):
        within(ears.told(ended), 1)
        assert lease.lost
    # and the next acquire has another session
    with advisory_lock(f"{name}0", using=USING) as lease:
        assert lease.held
        assert session_of(lease) is not session_of(leases[0])


def pause(link: Any, name: str) -> None:
    """Take the lock; when the parent asks, send what a first look shows."""
    lease = advisory_lock(name, using=USING).acquire()
    link.say("held")
    link.hear()
    looks = [lease.held, lease.lost]
    try:
        lease.release()
    except LockLost:
        looks.append("LockLost")
    link.say(looks)


def test_i3_whoever_was_asleep_beyond_the_session_knows_at_the_first_look(name: str) -> None:
    with Child(pause, name) as sleeper:
        assert sleeper.hear() == "held"
        sleeper.signal(signal.SIGSTOP)
        with advisory_lock(name, using=USING, timeout=10):
            sleeper.say("look")
            sleeper.signal(signal.SIGCONT)
            assert sleeper.hear() == [False, True, "LockLost"]


def test_i8_a_killed_holder_is_followed_within_the_session_timeout_and_a_second(name: str, server: Any) -> None:
    """And a killed waiter is passed over."""
    with Child(hold, USING, name) as holder:
        assert holder.hear() == "held"  # before the other one begins to ask
        with Child(get, name) as waiter:
            assert waiter.hear() == "asking"
            eventually(lambda: len(nodes(server, name)) == 2, "no waiter")
            waiter.kill()
            holder.kill()
            killed = time.monotonic()
            advisory_lock(name, using=USING, timeout=10).acquire().release()
            within(time.monotonic() - killed, SESSION + 1)


def test_a_program_that_ends_gives_its_locks_back_at_once(name: str) -> None:
    with Child(leave_it, name) as holder:
        assert holder.hear() == "held"
        holder.finish()
        began = time.monotonic()
        advisory_lock(name, using=USING, timeout=10).acquire().release()
        within(time.monotonic() - began, SESSION / 2)


def leave_it(link: Any, name: str) -> None:
    advisory_lock(name, using=USING).acquire()
    link.say("held")


@pytest.mark.parametrize("cut", [True, False])
def test_r7_the_lost_reply_of_a_create_leaves_one_node_or_none(name: str, proxy: Proxy, server: Any, cut: bool) -> None:
    """``cut``: the connection breaks, and the node is found again; else the deadline comes first."""
    with advisory_lock(f"{name}-warm", using=USING):
        pass
    with advisory_lock(name, using=USING):
        pass  # the node above is there now
    proxy.swallow(1, cut=cut)
    lock = advisory_lock(name, using=USING)
    if cut:
        lease = lock.acquire(timeout=5)
        assert len(nodes(server, name)) == 1, "a second node: kazoo's lock would wait behind its first one"
        assert lease.fence == server.exists(session_of(lease).path + "/" + path(server, name)).czxid
        lease.release()
    else:
        with pytest.raises(BackendUnavailable):
            lock.acquire(timeout=0.2)
        assert len(nodes(server, name)) == 1
        proxy.cut()
    eventually(lambda: nodes(server, name) == [], "a node stays behind", patience=SESSION)


def path(server: Any, name: str) -> str:
    from tests.engines.zookeeper.server import path_of

    (node,) = nodes(server, name)
    return f"{path_of(name).rpartition('/')[2]}/{node}"


def test_r7_the_lost_reply_of_a_release(name: str, proxy: Proxy, server: Any) -> None:
    lease = advisory_lock(name, using=USING).acquire()
    proxy.swallow(1, cut=True)
    lease.release()
    assert nodes(server, name) == []


def test_r7_500_cancels_leave_no_node(name: str, server: Any) -> None:
    """At any moment of an acquire that finds the lock free, or waits for it."""
    lock = advisory_lock(name, using=USING)

    async def one(delay: float, got: list[Any]) -> None:
        task = asyncio.create_task(lock.aacquire(timeout=5))
        await asyncio.sleep(delay)
        task.cancel()
        try:
            got.append(await task)
        except asyncio.CancelledError:
            return
        await got.pop().arelease()

    async def main() -> None:
        for number in range(500):
            await one(number % 50 * 0.0001, [])

    asyncio.run(main())
    assert nodes(server, name) == []
    with Child(hold, USING, name) as holder:
        assert holder.hear() == "held"
        asyncio.run(main())
        assert len(nodes(server, name)) == 1
        with pytest.raises(LockNotAcquired):
            lock.acquire(timeout=0)
        holder.say()
        assert holder.hear() == "released"
    assert nodes(server, name) == []


def test_r22_a_child_has_a_session_of_its_own(name: str, server: Any) -> None:
    """And its end takes nothing from the parent."""
    import os

    lease = advisory_lock(name, using=USING).acquire()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"no"
        try:
            with advisory_lock(f"{name}-child", using=USING, timeout=5):
                said = b"ok" if not lease.held and advisory_lock(name, using=USING).try_acquire() is None else b"no"
            registry.close()
        finally:
            os.write(writer, said)
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 2) == b"ok"
    os.close(reader)
    os.close(writer)
    assert lease.held
    assert len(nodes(server, name)) == 1
    lease.release()


def test_r7_a_first_waiter_whose_session_ends_queues_again(name: str, server: Any) -> None:
    """Its session began with this very acquire and ran out while the process was stopped. The server is there."""
    lease = advisory_lock(name, using=USING).acquire()
    with Child(get, name) as sleeper:
        assert sleeper.hear() == "asking"
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait")
        sleeper.signal(signal.SIGSTOP)
        eventually(lambda: len(nodes(server, name)) == 1, "its session does not end")
        sleeper.signal(signal.SIGCONT)
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait again")
        lease.release()
        assert sleeper.hear() > 0


@pytest.mark.parametrize("lost", ["watch", "request"])
def test_r7_a_waiter_whose_session_ends_while_it_asks_queues_again(
    name: str, proxy: Proxy, server: Any, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a sleep beyond the session, if the answer came before the end and is read after it. kazoo is being
    closed by then and registers no watch; nor does it answer what one thread puts into its queue while another one
    throws that away. Whoever trusts it waits for ever."""
    with advisory_lock(f"{name}-warm", using=USING) as warm:
        session = session_of(warm)
    ended = threading.Event()

    def end(*args: Any) -> None:
        if not ended.is_set():
            ended.set()
            threading.Thread(target=session.end).start()
            eventually(lambda: session.state is session.ENDED, "not ended")
            session.close(wait=False)
            assert session.kazoo._stopped.wait(5)

    def wake_late() -> None:
        if lost == "watch":  # kazoo reads the answer first
            time.sleep(0.3)
        wake_all()

    def fail_next(path: str) -> Any:
        """The next thing that the waiter sends is the request for its watch."""
        if lost == "watch":
            proxy.on_request = end
        else:
            monkeypatch.setattr(session.kazoo, "_call", end)
        return watch(path)

    def acquire() -> None:
        with advisory_lock(name, using=USING, timeout=20) as lease:
            sessions.append(session_of(lease))

    watch, wake_all, sessions = session.watch, session.asking.wake_all, []
    with Child(hold, USING, name) as holder:
        assert holder.hear() == "held"
        monkeypatch.setattr(session, "watch", fail_next)
        monkeypatch.setattr(session.asking, "wake_all", wake_late)
        waiter = threading.Thread(target=acquire)
        waiter.start()
        eventually(ended.is_set, "the watch was not asked for")
        eventually(lambda: len(nodes(server, name)) == 2, "it does not wait again")
        holder.say()
        assert holder.hear() == "released"
        waiter.join()
    assert sessions
    assert sessions[0] is not session
