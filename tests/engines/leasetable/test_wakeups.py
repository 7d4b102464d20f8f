"""Wake-ups of threads that wait for a lease in a file: a release wakes the first, and a lost one delays only."""

from __future__ import annotations

import gc
import os
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.leasetable import sqlite, wakeups
from django_distlock.backends.leasetable.statements import PLACE
from django_distlock.backends.leasetable.waiter import LONGEST_OF_NEXT, LONGEST_PAUSE, SIGN_OF_LIFE, TicketHolder
from django_distlock.backends.leasetable.wakeups import PREFIX, WakeSockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.exceptions import BackendUnavailable
from tests.engines.leasetable.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django_distlock.records import Claim, Grant

WAIT = 1000.0
LONG = 10.0

pytestmark = pytest.mark.skipif(not wakeups.SUPPORTED, reason="waiters only poll on this system")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stores]:
    made = Stores("file", monkeypatch, tmp_path)
    yield made
    made.close()


def queued(stores: Stores) -> tuple[Any, Grant, Any, Claim]:
    """The holder, its grant, and one waiter with its claim."""
    holder, client, claim = stores.client(), stores.client(), stores.claim()
    grant = holder.try_acquire(stores.claim())
    assert client.try_acquire(claim, WAIT) is None
    return holder, grant, client, claim


def own_socket(client: Any) -> wakeups.WakeSocket:
    mine = client.store.statements.wakes.mine()
    assert mine is not None
    return mine  # type: ignore[no-any-return]


def held_for(grant: Grant, seconds: float) -> Grant:
    """``grant``, as if it had been acquired that long ago."""
    return grant._replace(acquired_at=grant.acquired_at - seconds)


@pytest.mark.parametrize("seconds", [0.002, 10.0])
@pytest.mark.parametrize("fast", [True, False])
def test_a_release_wakes_the_first_waiter_only(stores: Stores, seconds: float, fast: bool) -> None:
    holder, grant, client, claim = queued(stores)
    behind = stores.client()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(behind.try_acquire, stores.claim(), WAIT).result() is None
        release = holder.release_fast if fast else holder.release
        assert release(held_for(grant, seconds))
        assert own_socket(client).wait(LONG)
        assert not own_socket(client).wait(0.0), "one wake-up"
        assert not other.submit(lambda: own_socket(behind).wait(0.0)).result()
        assert client.try_acquire(claim, WAIT) is not None


def test_a_holder_that_waited_wakes_the_next_one_without_a_look(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "HOT", WAIT)  # a short hold, however busy the machine is
    holder, grant, client, claim = queued(stores)
    with ThreadPoolExecutor(1) as other:
        behind = stores.client()
        assert other.submit(behind.try_acquire, stores.claim(), WAIT).result() is None
        assert holder.release(grant)
        grant = client.try_acquire(claim, WAIT)
        statements: list[str] = []
        client.store.file().cursor.connection.set_trace_callback(statements.append)
        assert client.release(grant)
        assert [statement.split()[0] for statement in statements] == ["UPDATE"]
        assert other.submit(lambda: own_socket(behind).wait(LONG)).result()


def test_a_short_hold_without_waiters_looks_for_none(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    client = stores.client()
    grant = client.try_acquire(stores.claim())
    statements: list[str] = []
    client.store.file().cursor.connection.set_trace_callback(statements.append)
    monkeypatch.setattr(sqlite, "SHORT_HOLD", WAIT)
    client.store.statements.release(client.store.file(), grant._replace(acquired_at=monotonic()))
    assert [statement.split()[0] for statement in statements] == ["UPDATE"]


def test_who_will_be_woken_hardly_looks(stores: Stores) -> None:
    """Without wake-ups it would be more than a hundred times."""
    _, _, client, claim = queued(stores)
    looks: list[str] = []
    client.store.file().cursor.connection.set_trace_callback(looks.append)
    client.wait(claim, 0, 0.25)
    assert 1 <= len(looks) <= 8 + 0.25 / LONGEST_OF_NEXT


@pytest.mark.parametrize("lost", ["the wake-up", "its socket"])
def test_r4_a_lost_wake_up_delays_only(stores: Stores, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The holder is killed between its release and the wake-up, or is in another network namespace."""
    holder, grant, client, claim = queued(stores)
    waiter, wakes = client._claims[claim.token], client.store.statements.wakes
    monkeypatch.setattr(WakeSockets, "wake", lambda self, address: None)
    if lost == "its socket":
        waiter._socket = None
    assert holder.release(held_for(grant, 1))
    client.wait(claim, 0, SIGN_OF_LIFE)
    assert waiter._turn, "a look has found it"
    assert LONGEST_OF_NEXT < LONGEST_PAUSE <= 0.05, "the bounds on the pause before it"
    assert not wakes.work, "from now on waiters look as often as without sockets, until one is woken"
    assert client.try_acquire(claim, WAIT) is not None


def test_a_wake_up_of_anybody_grants_nothing(stores: Stores) -> None:
    holder, grant, client, claim = queued(stores)
    mine = own_socket(client)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for _ in range(3):
            stranger.sendto(b"granted", PREFIX + mine.address)
    waiter = client._claims[claim.token]
    assert isinstance(waiter, TicketHolder)
    client.wait(claim, 0, 0.1)
    assert waiter._turn, "the first one is believed, which means: ask"
    assert client.try_acquire(claim, WAIT) is None
    client.wait(claim, 0, 0.1)
    assert not waiter._turn, "the others mean: look"
    assert holder.verify(grant)
    assert client.store.statements.holds(client.store.file(), claim) is False
    client.withdraw(claim)
    assert stores.tickets() == 0


def test_r4_a_wake_up_for_one_that_is_gone_is_harmless(stores: Stores) -> None:
    holder, grant, client, _ = queued(stores)
    client.store.statements.wakes.close()
    client._claims.clear()  # as if it were killed
    gc.collect()
    assert holder.release(held_for(grant, 1))


def sockets() -> int:
    return sum(os.readlink(f"/proc/self/fd/{name}").startswith("socket:") for name in descriptors())


def descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]


def test_r23_sockets_end_with_their_threads_and_with_the_session(stores: Stores) -> None:
    gc.collect()
    before = sockets()
    holder, grant, client, _ = queued(stores)

    def wait_and_leave() -> None:
        claim = stores.claim()
        assert client.try_acquire(claim, WAIT) is None
        client.withdraw(claim)

    for _ in range(20):
        thread = threading.Thread(target=wait_and_leave)
        thread.start()
        thread.join()
    gc.collect()
    assert sockets() == before + 1, "that of this thread"
    assert holder.release(held_for(grant, 1))
    for each in (holder, client):
        each.close()
        each._claims.clear()
    gc.collect()
    assert sockets() == before


@pytest.mark.parametrize("expected", [False, True])
def test_r7_a_waiter_whose_place_cannot_be_read_keeps_nobody_waiting(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, expected: bool
) -> None:
    """Its ticket is written by then, and goes with it."""
    holder, client, claim = stores.client(), stores.client(), stores.claim()
    grant = holder.try_acquire(stores.claim())
    statements = client.store.statements
    ask = statements.ask
    if expected:
        statements._note_queue(claim)

    def broken(session: Any, statement: str, values: Any) -> Any:
        if statement == PLACE:
            raise sqlite3.OperationalError("disk I/O error")
        return ask(session, statement, values)

    monkeypatch.setattr(statements, "ask", broken)
    with pytest.raises(BackendUnavailable):
        client.try_acquire(claim, WAIT)
    assert not stores.tickets()
    assert holder.release(grant)
    assert holder.try_acquire(stores.claim())
