"""What table_lock promises on SQLite, PostgreSQL and MariaDB alike."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import (
    DistlockError,
    LockLost,
    LockNotAcquired,
    LockTimeout,
    UnsupportedOperation,
    advisory_lock,
    table_lock,
)
from tests.conftest import eventually
from tests.data.app.models import Account, AccountProxy, Currency, Restaurant, UnmanagedAccount
from tests.data.world import (
    DATABASES,
    held,
    limits,
    odd_limits,
    on_servers,
    repeatable,
    respond,
    sent,
    when_somebody_waits,
)
from tests.faults.server import is_mariadb
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.data.rival import Rival


@pytest.fixture(params=DATABASES)
def using(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


def add(using: str, owner: str = "x") -> None:
    Account.objects.using(using).create(owner=owner)


def test_write_keeps_writers_and_lockers_out_and_read_lets_readers_in(using: str, rival: Rival) -> None:
    assert rival.writes(using)
    with table_lock(Account, using=using):
        assert not rival.writes(using)
        assert not rival.gets(using, "Account")
        assert rival.reads(using) == (using != "mariadb")
        assert rival.gets(using, "Currency") == (using != "default")  # SQLite has one lock
        add(using)
    assert rival.gets(using, "Account")
    with table_lock(read=[Account], using=using):
        assert not rival.writes(using)
        assert rival.reads(using)
        assert rival.gets(using, "Account", mode="read") == (using != "default")  # its one lock is for one
        assert Account.objects.using(using).count() == 1


@pytest.mark.alone
def test_r5_the_timeout_is_kept(using: str, rival: Rival) -> None:
    connections[using].ensure_connection()
    assert rival.lock(using, "Account") == "held"
    start = time.monotonic()
    with pytest.raises(LockTimeout, match=r"0\.3 s") as caught:
        table_lock(Account, using=using, timeout=0.3).__enter__()
    took = time.monotonic() - start
    rival.leave()
    least = 1 if using == "mariadb" and not is_mariadb() else 0.3  # Oracle's MySQL has whole seconds
    within(took, least + 1, least=least - 0.005)
    assert caught.value.__cause__ is not None


def test_r7_a_busy_table_leaves_nothing_in_the_session_or_at_the_server(using: str, rival: Rival) -> None:
    before = odd_limits(using)
    assert rival.lock(using, "Account") == "held"
    ways: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"nowait": True}, LockNotAcquired),
        ({"timeout": 0}, LockNotAcquired),
        ({"timeout": 0.1}, LockTimeout),
    ]
    for how, kind in ways:
        with pytest.raises(kind) as caught:
            table_lock(Account, using=using, **how).__enter__()
        assert type(caught.value) is kind
        assert limits(using) == before
        assert not connections[using].in_atomic_block
    rival.leave()
    assert rival.gets(using, "Account")
    for timeout in (0, 0.3, 7, None):
        with table_lock(Account, Currency, using=using, timeout=timeout):
            assert limits(using) == before
        assert limits(using) == before


def test_an_error_rolls_back_and_unlocks_and_hooks_run_when_it_is_free(using: str, rival: Rival) -> None:
    seen: list[bool] = []
    with pytest.raises(ZeroDivisionError), table_lock(Account, using=using):
        _ = Account.objects.using(using).create(owner="lost").balance / 0
    assert rival.gets(using, "Account")
    with table_lock(Account, using=using):
        transaction.on_commit(lambda: seen.append(rival.gets(using, "Account")), using=using)
        with transaction.atomic(using=using):
            add(using, "kept")
        with transaction.atomic(using=using):  # a savepoint
            add(using, "lost")
            transaction.set_rollback(True, using=using)
        assert not rival.gets(using, "Account")
    assert seen == [True]
    assert [account.owner for account in Account.objects.using(using)] == ["kept"]


def test_a_connection_closed_inside_is_a_loss(using: str, rival: Rival) -> None:
    """Django itself leaves such a block without a word, though its writes are gone."""
    with pytest.raises(LockLost, match="closed"), table_lock(Account, using=using):
        connections[using].close()
    eventually(lambda: rival.gets(using, "Account"), "still locked")  # the server sees the end of the socket
    with table_lock(Account, using=using):
        assert not rival.gets(using, "Account")


def test_other_models_of_the_table_and_parents(using: str, rival: Rival) -> None:
    for model in (AccountProxy, UnmanagedAccount):
        with table_lock(model, using=using):
            assert not rival.writes(using)
            model._default_manager.using(using).create(owner="x")
    with table_lock(read=[UnmanagedAccount], write=[Account], using=using):
        assert not rival.gets(using, "Account", mode="read")
    with table_lock(Restaurant, using=using):
        assert not rival.writes(using, "dataapp_place")
        restaurant = Restaurant.objects.using(using).create(name="x")
        assert Restaurant.objects.using(using).filter(name="x").count() == 1
        restaurant.delete()


def test_one_recipe_for_many_threads(using: str) -> None:
    """20 increments by each of 4 threads through one object, read and written without any other care."""
    account = Account.objects.using(using).create(owner="x")
    lock = table_lock(Account, using=using, timeout=None)

    def count(_: int) -> None:
        for _ in range(20):
            with lock:
                mine = Account.objects.using(using).get()
                mine.balance += 1
                mine.save(using=using)
        connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    account.refresh_from_db()
    assert account.balance == 80


@on_servers
def test_r8_a_writer_and_a_table_lock(using: str, rival: Rival) -> None:
    """Each has one table and wants the other's: the server finds the circle."""

    def lock() -> str:
        try:
            with table_lock(Account, Currency, using=using, timeout=20):
                return "done"
        except DistlockError as error:
            return type(error).__name__
        finally:
            connections.close_all()

    rival.do("begin", using, "Currency")
    with ThreadPoolExecutor(1) as pool:
        locking = pool.submit(lock)
        with when_somebody_waits(using):
            pass
        theirs = rival.do("insert", using, "Account")
        rival.leave()
    assert sorted([locking.result(), theirs]) in (["DeadlockDetected", "done"], ["OperationalError", "done"])


@on_servers
@pytest.mark.parametrize("timeout", [20, None])
def test_r13_the_snapshot_is_younger_than_the_lock(rival: Rival, using: str, timeout: float | None) -> None:
    """On PostgreSQL a SELECT before the lock, to set the timeout, would freeze what is seen."""
    assert rival.lock(using, "Account") == "held"
    rival.do("begin", using, "Account")
    waits = when_somebody_waits(using, lambda: rival.do("release"))
    with repeatable(using) as alias, transaction.atomic(alias) if using == "postgres" else nullcontext():  # noqa: SIM117
        with waits, table_lock(Account, using=alias, timeout=timeout):
            assert Account.objects.using(alias).exists()


@pytest.mark.parametrize("using", ["default", "mariadb"])
def test_modes_that_only_postgres_has(using: str) -> None:
    for mode in ("access share", "row share", "row exclusive", "share update exclusive"):
        with sent(using) as texts, pytest.raises(UnsupportedOperation, match=mode):
            table_lock(Account, mode=mode, using=using).__enter__()
        assert not texts
    if using == "mariadb":
        for mode, writes in (("share", False), ("exclusive", True), ("access exclusive", True)):
            with table_lock(Account, mode=mode, using=using):
                assert (("dataapp_account", "MDL_SHARED_NO_READ_WRITE") in held(using)) == writes


def test_r12_around_a_view_the_lock_comes_before_the_transaction_of_the_request(
    using: str, rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing view is rolled back; with a busy lock the transaction is not begun."""
    monkeypatch.setitem(connections.settings[using], "ATOMIC_REQUESTS", True)
    seen: list[bool] = []

    def work(request: Any) -> str:
        add(using)
        seen.extend([connections[using].in_atomic_block, rival.gets(using, "Account")])
        return "done" if not request.GET else request.GET["absent"]

    lock, named = table_lock(Account, using=using, timeout=0), advisory_lock("data:view", using="memory")
    plain: Any = type("Plain", (View,), {"get": lambda view, request: work(request)})
    shapes = [
        lock(work),
        named(lock(work)),
        lock(named(work)),
        method_decorator(lock, name="dispatch")(plain).as_view(),
    ]
    for shape in shapes:
        assert respond(shape) == "done"
        assert rival.gets(using, "Account")
        with pytest.raises(KeyError):
            respond(shape, "fail")
    assert seen == [True, False] * 8
    assert Account.objects.using(using).count() == 4
    assert rival.lock(using, "Account") == "held"
    with pytest.raises(LockNotAcquired):
        respond(shapes[0])
    rival.leave()
    late = transaction.atomic(using=using)(shapes[0])
    if using == "mariadb":
        with pytest.raises(UnsupportedOperation, match="as its decorator"):
            respond(late)
    else:
        assert respond(late) == "done"
