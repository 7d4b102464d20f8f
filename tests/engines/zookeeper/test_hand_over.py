"""From the holder to the next in line: a marked release saves it a look at the queue, and nothing else may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.backends.zookeeper import queue
from tests.conftest import eventually
from tests.engines.zookeeper.server import USING, Waiter, nodes, packets, path_of, stand_in, use, watched

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture(autouse=True)
def _every_release_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(queue, "TRUST", 60.0)


def waited(server: Any, name: str) -> Waiter:
    """A holder that had to wait for the lock, so that it marks its release."""
    first, waiter = stand_in(server, name), Waiter(server, name)
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
    eventually(lambda: watched(holder.path), "it does not wait for the holder")
    assert waiter.grant is None
    assert holder.release()
    assert waiter.release()


def test_r17_a_waiter_without_a_node_that_comes_in_is_told(name: str, server: Any) -> None:
    """As a holder is whose node an operator deletes."""
    holder = waited(server, name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(advisory_lock(name, using=USING).acquire, timeout=20)
        eventually(lambda: len(nodes(server, name)) == 2 and watched(holder.path), "it does not wait")
        server.delete(f"{path_of(name)}/{nodes(server, name)[1]}")
        holder.release()
        lease = waiting.result()
    eventually(lambda: lease.lost, "it is not told")
    with pytest.raises(LockLost):
        lease.release()


def test_r7_the_lost_reply_of_a_marked_release(name: str, server: Any, proxied: Any) -> None:
    proxy = proxied(USING)
    holder = waited(server, name)
    proxy.swallow(1, cut=True)
    assert holder.release()
    assert nodes(server, name) == []


def test_r1_a_reader_that_leaves_lets_no_writer_in_before_the_others(name: str, server: Any) -> None:
    """Both had to wait, and it is the one that the writer watches."""
    first = stand_in(server, name)
    readers = [Waiter(server, name, shared=True) for _ in range(2)]
    server.delete(first)
    for reader in readers:
        reader.comes_in()
    writer = Waiter(server, name)
    assert readers[1].release()
    eventually(lambda: watched(readers[0].path) or writer.grant, "it does not wait for the other reader")
    assert writer.grant is None, "a writer beside a reader"
    assert readers[0].release()
    assert writer.release()
