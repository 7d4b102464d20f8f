"""From the holder to the next in line: a marked release saves it a look at the queue, and nothing else may."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent
from kazoo.security import make_acl

from django_distlock import LockLost, advisory_lock
from django_distlock.backends.zookeeper import queue, session
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.zookeeper.server import (
    USING,
    address,
    behind,
    clerk,
    nodes,
    own_path,
    packets,
    path_of,
    stand_in,
    use,
)
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def server() -> Iterator[Any]:
    with clerk() as client:
        yield client


@pytest.fixture(autouse=True)
def _every_release_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(queue, "TRUST", 60.0)
    monkeypatch.setattr(session, "MARK_TIMEOUT", 0.5)


class Waiter:
    """One waiter of this process, past the queue of the process, which would let only one of them ask."""

    def __init__(self, server: Any, name: str, *, wait: float = 10, shared: bool = False) -> None:
        site_key.load()
        entry = registry.entry(USING)
        self.backend: Any = entry.backend
        self.claim, self.wait = Claim(key=entry.key(name), shared=shared), wait
        self.grant: Any = None
        before = nodes(server, name)
        ahead = [f"{path_of(name)}/{node}" for node in before if not shared or "-x-" in node][-1:]
        others = [self._parked(path) for path in ahead]  # waiters of this process share a session and its watches
        self._thread = threading.Thread(target=self._acquire)
        self._thread.start()
        eventually(lambda: len(nodes(server, name)) == len(before) + 1, "it does not queue")
        self.path = f"{path_of(name)}/{next(node for node in nodes(server, name) if node not in before)}"
        eventually(
            lambda: self.granted or [self._parked(path) for path in ahead] > others or not ahead, "it does not wait"
        )
        self.heard()

    def _acquire(self) -> None:
        self.grant = self.backend.try_acquire(self.claim, self.wait)

    @property
    def granted(self) -> bool:
        return self.grant is not None

    def watches(self, path: str | None = None) -> bool:
        """Is the server asked to report the end of the node ahead, or of the node ``path``?"""
        found = self._parked(path) > 0
        self.heard()
        return found

    def _parked(self, path: str | None = None) -> int:
        session = self.backend._session
        watches = [] if session is None else list(session._watches.items())
        return sum(len(watch._parkers) for ahead, watch in watches if path in (None, ahead))

    def heard(self) -> None:
        """Make one round trip: all requests sent before are answered then, and all events before have come."""
        session = self.backend._session
        run(session.ask(monotonic() + 5, lambda kazoo: kazoo.exists_async("/")))

    def comes_in(self) -> Any:
        self._thread.join(10)
        assert self.granted, "it waits although it is its turn"
        return self.grant

    def release(self) -> bool:
        released: bool = self.backend.release(self.comes_in())
        return released


def waited(server: Any, name: str, **options: Any) -> Waiter:
    """A holder that had to wait for the lock, so that it marks its release."""
    first = stand_in(server, name)
    waiter = Waiter(server, name, **options)
    server.delete(first)
    waiter.comes_in()
    return waiter


def test_one_request_from_holder_to_holder(name: str, server: Any, settings: Any) -> None:
    """The marked release: the next one, which has read the queue and watches the holder, need not ask again."""
    use(settings, session_timeout=30)
    holder = waited(server, name)
    cost = 0
    for _ in range(20):
        waiter = Waiter(server, name)
        before = packets()
        holder.release()
        waiter.comes_in()
        cost += packets() - before
        holder = waiter
    holder.release()
    # the request that counts is counted too, and signs of life come on top
    assert cost <= 20 * 2 + 3, "the release is not all that is sent once the waiter waits"


def test_r1_a_waiter_that_dies_lets_nobody_in(name: str, server: Any) -> None:
    """The end of its node is no release: the holder ahead of it still holds."""
    holder = waited(server, name)
    dead = stand_in(server, name)
    waiter = Waiter(server, name)
    server.delete(dead)
    eventually(lambda: waiter.watches(holder.path), "it does not wait for the holder")
    assert not waiter.granted
    assert holder.release()
    assert waiter.release()


def test_r1_a_waiter_that_gives_up_lets_nobody_in(name: str, server: Any) -> None:
    holder = waited(server, name)
    impatient = Waiter(server, name, wait=3)
    waiter = Waiter(server, name)
    impatient._thread.join()  # until then it waits for the holder, with the watch of both
    eventually(lambda: waiter.watches(holder.path) and not waiter.watches(impatient.path), "it does not look again")
    assert not waiter.granted
    assert not impatient.granted
    assert holder.release()
    assert waiter.release()


def test_r1_a_reader_that_leaves_lets_no_writer_in_before_the_others(name: str, server: Any) -> None:
    first = stand_in(server, name)
    readers = [Waiter(server, name, shared=True) for _ in range(2)]
    server.delete(first)
    for reader in readers:
        reader.comes_in()
    writer = Waiter(server, name)
    assert readers[1].release()
    eventually(lambda: writer.watches(readers[0].path), "it does not wait for the other reader")
    assert not writer.granted
    assert readers[0].release()
    assert writer.release()


def test_a_marked_release_lets_all_readers_in(name: str, server: Any) -> None:
    holder = waited(server, name)
    readers = [Waiter(server, name, shared=True) for _ in range(2)]
    holder.release()
    for reader in readers:
        assert reader.release()


def test_a_waiter_reads_the_queue_again_after_a_while(name: str, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has deleted its node: then it is not the next in line, whatever the holder does."""
    monkeypatch.setattr(queue, "TRUST", 0.0)
    holder = waited(server, name)
    waiter = Waiter(server, name)
    server.delete(waiter.path)
    next_in_line = stand_in(server, name)
    holder.release()
    eventually(lambda: waiter.watches(next_in_line), "it does not queue again")
    assert not waiter.granted
    server.delete(next_in_line)
    assert waiter.release()


def test_r17_a_waiter_without_a_node_that_comes_in_is_told(name: str, server: Any) -> None:
    """As a holder is whose node an operator deletes."""
    holder = waited(server, name)
    leases: list[Any] = []
    lock = advisory_lock(name, using=USING)
    thread = threading.Thread(target=lambda: leases.append(lock.acquire(timeout=10)))
    thread.start()
    eventually(lambda: len(nodes(server, name)) == 2 and holder.watches(holder.path), "it does not wait")
    server.delete(f"{path_of(name)}/{nodes(server, name)[1]}")
    holder.release()
    thread.join()
    (lease,) = leases
    eventually(lambda: lease.lost, "it is not told")
    with pytest.raises(LockLost):
        lease.release()


def test_r18_a_mark_counts_for_nothing_while_the_session_is_in_doubt(
    name: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been on its way for longer than the session lived: the server is asked."""
    holder = waited(server, name)
    waiter = Waiter(server, name)
    session = waiter.backend._session
    asked: list[Any] = []
    children = session.kazoo.get_children_async
    monkeypatch.setattr(session.kazoo, "get_children_async", lambda *args: (asked.append(args), children(*args))[1])
    monkeypatch.setattr(session, "in_doubt", lambda: True)
    holder.release()
    assert waiter.release()
    assert asked


def test_no_right_to_write_to_the_nodes_is_needed(name: str, server: Any, settings: Any) -> None:
    own_path(settings)
    use(settings, acl=[make_acl("world", "anyone", read=True, create=True, delete=True)])
    holder = waited(server, name)
    waiter = Waiter(server, name)
    assert holder.release()
    assert waiter.release()
    assert nodes(server, name) == []
    assert not waiter.backend.release(waiter.grant), "it was not held any more"


def test_r7_the_lost_reply_of_a_marked_release(name: str, server: Any, settings: Any) -> None:
    with Proxy(*address()) as proxy:
        behind(settings, proxy)
        holder = waited(server, name)
        proxy.swallow(1, cut=True)
        assert holder.release()
        assert nodes(server, name) == []
        registry.close()


@pytest.mark.parametrize("held", [True, False])
def test_r1_a_node_that_another_program_writes_to_is_not_released(name: str, server: Any, held: bool) -> None:
    """``set`` in ZooKeeper's shell, on the node of the holder or of a waiter, lets nobody in."""
    holder = waited(server, name)
    ahead = holder.path if held else stand_in(server, name)
    waiter = Waiter(server, name, wait=3)
    server.set(ahead, b"a note")
    waiter._thread.join(10)
    assert not waiter.granted, "two holders"


def test_r1_the_end_of_a_waiter_whose_node_was_written_to_lets_nobody_in(name: str, server: Any) -> None:
    holder = waited(server, name)
    ahead = stand_in(server, name)
    waiter = Waiter(server, name)
    watches = waiter.backend._session._watches  # the client's thread changes it
    old = watches[ahead]
    server.set(ahead, b"a note")
    eventually(lambda: watches.get(ahead, old) is not old and waiter.watches(ahead), "it does not look again")
    server.delete(ahead)
    eventually(lambda: waiter.watches(holder.path), "it does not wait for the holder")
    assert not waiter.granted
    assert holder.release()
    assert waiter.release()


def test_a_deletion_long_after_a_change_is_no_marked_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the waiter may have slept between the two."""
    for longest, released in [(60.0, True), (0.0, False)]:
        monkeypatch.setattr(session, "MARK_TIMEOUT", longest)
        watch = session.NodeWatch("/ahead", {})
        for event in (EventType.CHANGED, EventType.DELETED):
            watch(WatchedEvent(event, KeeperState.CONNECTED, "/ahead"))
        assert watch.released is released


def test_r1_a_connection_that_breaks_between_the_two_events_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MARK_TIMEOUT", 60.0)
    watch = session.NodeWatch("/ahead", {})
    for event in (EventType.CHANGED, EventType.NONE):
        watch(WatchedEvent(event, KeeperState.CONNECTING, "/ahead"))
    assert not watch.released
