"""What table_lock promises on SQLite, PostgreSQL and MariaDB alike."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import DeadlockDetected, DistlockError, LockLost, LockNotAcquired, LockTimeout, table_lock
from tests.conftest import eventually
from tests.data.app.models import Account, AccountProxy, Currency, Restaurant, UnmanagedAccount
from tests.data.asking import limits, run, table_wait, when_somebody_waits
from tests.data.rival import Rival
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def clean(db_alias: str) -> Iterator[None]:
    yield
    for model in (Account, Currency):
        model.objects.using(db_alias).all().delete()


def settings(using: str) -> Any:
    return run(using, limits(using))


def fail_after_writing(using: str) -> None:
    Account.objects.using(using).create(owner="lost")
    raise ZeroDivisionError


def in_threads(*work: Any) -> None:
    """Do each in a thread, and fail with the first error."""
    errors: list[BaseException] = []

    def guarded(each: Any) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guarded, args=[each]) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_write_keeps_writers_and_lockers_out(db_alias: str, rival: Rival) -> None:
    assert rival.writes(db_alias)
    with table_lock(Account, using=db_alias):
        assert not rival.writes(db_alias)
        assert not rival.gets(db_alias, "Account")
        assert rival.reads(db_alias) == (db_alias != "mariadb")
        assert rival.gets(db_alias, "Currency") == (db_alias != "default")  # SQLite has one lock
        Account.objects.using(db_alias).create(owner="x")
    assert rival.writes(db_alias)
    assert rival.gets(db_alias, "Account")


def test_read_lets_readers_in(db_alias: str, rival: Rival) -> None:
    with table_lock(read=[Account], using=db_alias):
        assert not rival.writes(db_alias)
        assert rival.reads(db_alias)
        assert rival.gets(db_alias, "Account", mode="read") == (db_alias != "default")  # its one lock is for one
        assert Account.objects.using(db_alias).count() == 0


@pytest.mark.alone
def test_r5_the_timeout_is_kept(db_alias: str, rival: Rival) -> None:
    connections[db_alias].ensure_connection()
    assert rival.lock(db_alias, "Account") == "held"
    start = time.monotonic()
    with pytest.raises(LockTimeout, match=r"0\.3 s") as caught, table_lock(Account, using=db_alias, timeout=0.3):
        pytest.fail("two hold it")
    took = time.monotonic() - start
    rival.leave()
    least = table_wait(db_alias, 0.3)
    within(took, least + 1, least=least - 0.005)
    assert caught.value.__cause__ is not None


def test_busy(db_alias: str, rival: Rival) -> None:
    """R7: nothing is left, in the session or at the server."""
    before = settings(db_alias)
    assert rival.lock(db_alias, "Account") == "held"
    for how, kind in (
        ({"nowait": True}, LockNotAcquired),
        ({"timeout": 0}, LockNotAcquired),
        ({"timeout": 0.1}, LockTimeout),
    ):
        with pytest.raises(kind) as caught, table_lock(Account, using=db_alias, **how):
            pytest.fail("two hold it")
        assert type(caught.value) is kind
        assert settings(db_alias) == before
        assert not connections[db_alias].in_atomic_block
    rival.leave()
    assert rival.gets(db_alias, "Account")
    for timeout in (0, 0.3, 7, None):
        with table_lock(Account, Currency, using=db_alias, timeout=timeout):
            assert settings(db_alias) == before
        assert settings(db_alias) == before


def test_a_waiter_gets_it_when_the_holder_leaves(db_alias: str, rival: Rival) -> None:
    with table_lock(Account, using=db_alias):
        Account.objects.using(db_alias).create(owner="committed first")
        rival.start("lock", db_alias, ["Account"], "write", None)
    assert rival.hear() == "held"
    rival.leave()


@pytest.mark.tier2
def test_a_killed_holder_frees_it(db_alias: str) -> None:
    with Rival() as rival:
        assert rival.lock(db_alias, "Account") == "held"
        rival.kill()
        with table_lock(Account, using=db_alias, timeout=5):
            pass


def test_an_exception_rolls_back_and_unlocks(db_alias: str, rival: Rival) -> None:
    """And atomic() inside is a savepoint."""
    with pytest.raises(ZeroDivisionError), table_lock(Account, using=db_alias):
        fail_after_writing(db_alias)
    assert not Account.objects.using(db_alias).exists()
    assert rival.gets(db_alias, "Account")
    with table_lock(Account, using=db_alias):
        with transaction.atomic(using=db_alias):
            Account.objects.using(db_alias).create(owner="kept")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=db_alias):
            fail_after_writing(db_alias)
        assert not rival.gets(db_alias, "Account")
    assert [account.owner for account in Account.objects.using(db_alias)] == ["kept"]


def test_hooks_run_when_the_lock_is_free(db_alias: str, rival: Rival) -> None:
    seen: list[bool] = []
    with table_lock(Account, using=db_alias):
        transaction.on_commit(lambda: seen.append(rival.gets(db_alias, "Account")), using=db_alias)
    assert seen == [True]


def test_a_connection_closed_inside_is_a_loss(db_alias: str, rival: Rival) -> None:
    """Django itself leaves such a block without a word, though its writes are gone."""
    with pytest.raises(LockLost, match="closed"), table_lock(Account, using=db_alias):
        connections[db_alias].close()
    eventually(lambda: rival.gets(db_alias, "Account"), "still locked")  # the server sees the end of the socket
    with table_lock(Account, using=db_alias):
        assert not rival.gets(db_alias, "Account")


def test_other_models_of_the_table(db_alias: str, rival: Rival) -> None:
    for model in (AccountProxy, UnmanagedAccount):
        with table_lock(model, using=db_alias):
            assert not rival.writes(db_alias)
            model._default_manager.using(db_alias).create(owner="x")
    with table_lock(read=[UnmanagedAccount], write=[Account], using=db_alias):
        assert not rival.gets(db_alias, "Account", mode="read")


def test_parents_are_locked_too(db_alias: str, rival: Rival) -> None:
    with table_lock(Restaurant, using=db_alias):
        assert not rival.writes(db_alias, "Place")
        restaurant = Restaurant.objects.using(db_alias).create(name="x")
        assert Restaurant.objects.using(db_alias).filter(name="x").count() == 1
        restaurant.delete()


@pytest.mark.parametrize("db_alias", ["postgres"], indirect=True)  # MariaDB sorts them itself, SQLite has one lock
def test_r9_any_order_is_one_order(db_alias: str, rival: Rival, second: Rival) -> None:
    """Who waits for the first table holds no other, however the models are named: else two callers could each have one
    table and wait for the other."""
    free: list[bool] = []
    assert rival.lock(db_alias, "Account") == "held"

    def look() -> None:
        free.append(second.gets(db_alias, "Currency"))
        rival.leave()

    with when_somebody_waits(db_alias, look), table_lock(Currency, Account, using=db_alias, timeout=None):
        pass
    assert free == [True]


def test_one_recipe_for_many_threads(db_alias: str) -> None:
    """20 increments by each of 4 threads through one object, read and written without any other care."""
    account = Account.objects.using(db_alias).create(owner="x")
    lock = table_lock(Account, using=db_alias, timeout=None)

    def add() -> None:
        for _ in range(20):
            with lock:
                mine = Account.objects.using(db_alias).get(pk=account.pk)
                mine.balance += 1
                mine.save(using=db_alias)

    in_threads(*[add] * 4)
    account.refresh_from_db()
    assert account.balance == 80


@pytest.mark.parametrize("db_alias", ["postgres", "mariadb"], indirect=True)
def test_r8_a_writer_and_a_table_lock(db_alias: str, rival: Rival) -> None:
    """The rival has written the second table; the lock has the first and waits; then the rival writes that too. The
    server finds the circle."""
    outcomes: list[str] = []
    rival.do("begin", db_alias, "Currency")

    def lock() -> None:
        try:
            with table_lock(Account, Currency, using=db_alias, timeout=20):
                outcomes.append("done")
        except DistlockError as error:
            outcomes.append(type(error).__name__)

    thread = threading.Thread(target=in_threads, args=[lock])
    thread.start()
    with when_somebody_waits(db_alias, lambda: None):
        pass
    outcomes.append(rival.do("insert", db_alias, "Account"))
    rival.leave()
    thread.join()
    assert "done" in outcomes
    assert {"OperationalError", "DeadlockDetected"} & set(outcomes)


@pytest.mark.parametrize("db_alias", ["postgres"], indirect=True)
def test_r8_a_deadlock_has_one_victim(db_alias: str, rival: Rival) -> None:
    outcomes = []
    with transaction.atomic(using=db_alias):
        assert rival.lock(db_alias, "Currency") == "held"
        with table_lock(Account, using=db_alias):
            rival.start("lock", db_alias, ["Account"], "write", 20)
            with when_somebody_waits(db_alias, lambda: None):
                pass
            try:
                with table_lock(Currency, using=db_alias, timeout=20):
                    outcomes.append("held")
            except DeadlockDetected as error:
                outcomes.append(type(error).__name__)
                transaction.set_rollback(True, using=db_alias)
    outcomes.append(rival.hear())
    rival.do("release")
    assert sorted(outcomes) == ["DeadlockDetected", "held"]
