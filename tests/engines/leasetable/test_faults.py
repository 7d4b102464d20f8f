"""Sessions that die, hang, or lose a reply; statements that are interrupted. Leases are rows: nothing is lost by it,
and nothing stays held by it."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections
from django.db.utils import ProgrammingError

from django_distlock import BackendUnavailable, LockLost, LockTimeout, advisory_lock, held_locks
from django_distlock.backends.leasetable import backend as engine
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.engines.leasetable.stores import STORES, Stores
from tests.engines.leasetable.test_processes import hold, waiters
from tests.faults.conftest import database_alias
from tests.faults.server import ask
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.conftest import Proxied

USING = {"leasetable_postgres": "postgres", "leasetable_mariadb": "mariadb"}
SLACK = 0.15  # for a machine that has other things to do; the rule says 30 ms

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stores]:
    made = Stores(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


def nothing_is_held(using: str, name: str) -> None:
    """Long before the TTL of 30 s."""

    def none() -> bool:
        (report,) = held_locks(using)
        return report.error is None and name not in [info.name for info in report.locks]

    eventually(none, "still held")


def timed(work: Callable[[], Any], *expected: type[Exception]) -> float:
    began = time.monotonic()
    with pytest.raises(expected):
        work()
    return time.monotonic() - began


@pytest.mark.parametrize("using", USING)
def test_r5_a_server_that_never_answers(proxied: Proxied, using: str, name: str) -> None:
    """The server executes the statement when it comes back, and the clean-up undoes it."""
    proxy = proxied(using)
    lock = advisory_lock(name, using=using)
    lock.acquire().release()
    for timeout in (0, 0.7):
        proxy.blackhole()
        within(timed(partial(lock.acquire, timeout=timeout), BackendUnavailable), max(timeout, 0.5) + SLACK)
        proxy.heal()
        nothing_is_held(using, name)
        lock.acquire(timeout=5).release()
    proxy.blackhole()
    within(timed(lambda: asyncio.run(lock.aacquire(timeout=0.6)), BackendUnavailable), 0.6 + SLACK)
    proxy.heal()
    nothing_is_held(using, name)


@pytest.mark.parametrize("using", USING)
def test_r5_a_server_that_stops_while_somebody_waits(proxied: Proxied, using: str, name: str) -> None:
    proxy = proxied(using)
    with Child(hold, using, name, 30.0) as child:
        assert child.hear() == "held"
        lock = advisory_lock(name, using=using)
        assert lock.try_acquire() is None
        stop = threading.Timer(0.3, proxy.blackhole)
        stop.start()
        within(timed(lambda: lock.acquire(timeout=0.6), BackendUnavailable, LockTimeout), 0.6 + SLACK, least=0.6)
        stop.join()
        proxy.heal()
        eventually(lambda: waiters(using, name) == 0, "a ticket is left")
        child.say()


@pytest.mark.parametrize("using", USING)
@pytest.mark.parametrize("cut", [True, False], ids=["connection cut", "silence"])
def test_r7_a_lost_reply(proxied: Proxied, using: str, name: str, cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement was executed, and is sent again: the lease is ours, the release is one."""
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 5.0)
    proxy = proxied(using)
    lock = advisory_lock(name, using=using, timeout=5)
    lock.acquire().release()
    proxy.swallow(1, cut=cut)
    lease = lock.acquire()
    assert [info.fence for report in held_locks(using) for info in report.locks if info.name == name] == [lease.fence]
    proxy.swallow(1, cut=cut)
    lease.extend(20)
    assert lease.held
    proxy.swallow(1, cut=cut)
    lease.release()
    nothing_is_held(using, name)


def server_session(using: str) -> int:
    """The id of the session that the backend has now."""
    raw = registry.entry(using).backend.store.session.wrapper.connection  # type: ignore[attr-defined]
    return int(raw.thread_id() if hasattr(raw, "thread_id") else raw.info.backend_pid)


@pytest.mark.parametrize("using", USING)
def test_an_idle_session_that_died_is_replaced(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    lease = lock.acquire()
    first = server_session(using)
    kill = "SELECT pg_terminate_backend(%s)" if using == "leasetable_postgres" else "KILL CONNECTION %s"
    ask(USING[using], kill, first)
    assert lease.held, "a lease is no matter of the session"
    lease.release()
    ask(USING[using], kill, server_session(using))
    lock.acquire().release()
    assert server_session(using) != first


def test_r6_nobody_listens(name: str, settings: Any) -> None:
    with database_alias("nobody", "postgres", PORT="1") as alias:
        settings.DISTLOCK = {
            "nobody": {
                "BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend",
                "OPTIONS": {"database": alias},
            }
        }
        lock = advisory_lock(name, using="nobody")
        for work in (lambda: lock.acquire(timeout=5), lambda: asyncio.run(lock.aacquire(timeout=5))):
            with pytest.raises(BackendUnavailable, match="'nobody' failed: connection failed") as caught:
                work()
            assert isinstance(caught.value.__cause__, OperationalError)
        assert [report.error for report in held_locks("nobody")] == ["OperationalError"]
        password = connections.settings["postgres"]["PASSWORD"]
        assert password not in repr(caught.value)


@pytest.mark.parametrize("using", USING)
def test_a_missing_table_names_the_command(using: str, name: str) -> None:
    database = USING[using]
    lock = advisory_lock(name, using=using)
    ask(database, "ALTER TABLE django_distlock_lease RENAME TO django_distlock_away")
    try:
        with pytest.raises(BackendUnavailable, match=f"`python manage.py migrate --database={database}`") as caught:
            lock.acquire()
        assert isinstance(caught.value.__cause__, ProgrammingError)
    finally:
        ask(database, "ALTER TABLE django_distlock_away RENAME TO django_distlock_lease")
    lock.acquire().release()


@pytest.mark.parametrize("using", USING)
def test_r20_a_renewal_that_hangs_does_not_hold_up_the_watch(using: str, name: str, proxied: Proxied) -> None:
    """The keepalive thread tells the loss at the end of the lease, and cuts the statement off."""
    proxy = proxied(using)
    lease = advisory_lock(name, using=using, ttl=2).acquire()
    told = threading.Event()
    lease.on_lost(lambda _: told.set())
    proxy.blackhole()
    assert told.wait(PATIENCE), "nobody looks at the lease"
    proxy.heal()
    with pytest.raises(LockLost):
        lease.release()
    with advisory_lock(name, using=using, timeout=PATIENCE):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("when", ["enter", "take_turn", "give"])
def test_r7_an_interrupt_after_the_write(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: str
) -> None:
    """The statement was executed, and its caller did not get the result: no lease and no ticket is left."""
    client, other = stores.client(), stores.client()
    assert client.release(client.try_acquire(stores.claim()))
    kind = type(client.store.statements)
    original = getattr(kind, when)

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(kind, when, original)
        original(*args)
        raise error

    claim = stores.claim()
    if when == "take_turn":
        held = other.try_acquire(stores.claim())
        assert client.try_acquire(claim, 100) is None
        assert other.release(held)
    grant = client.try_acquire(claim) if when == "give" else None
    monkeypatch.setattr(kind, when, interrupted)
    with pytest.raises(error):
        client.release(grant) if when == "give" else client.try_acquire(claim, 100)
    client.withdraw(claim)  # what a waiter does at its end
    assert stores.tickets() == 0
    assert other.release(other.try_acquire(stores.claim()))


@pytest.mark.parametrize(
    ("original", "changes"),
    [("pgbouncer", {}), ("postgres", {"OPTIONS": {"pool": True}}), ("postgres", {"CONN_MAX_AGE": 0})],
    ids=["pgbouncer", "pool", "no persistent connections"],
)
def test_sessions_of_others_are_not_used(name: str, settings: Any, original: str, changes: dict[str, Any]) -> None:
    """A pooler that gives each statement another session does no harm to rows; Django's pool is left out."""
    with database_alias("pooled", original, **changes) as alias:
        settings.DISTLOCK = {
            "pooled": {
                "BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend",
                "OPTIONS": {"database": alias},
            }
        }
        lock = advisory_lock(name, using="pooled")
        for _ in range(20):
            with lock as lease:
                assert lease.held
        session = registry.entry("pooled").backend.store.session  # type: ignore[attr-defined]
        assert (session.wrapper.connection.prepare_threshold is None) == (original == "pgbouncer")
        assert "pool" not in session.wrapper.settings_dict["OPTIONS"]
        registry.close()
