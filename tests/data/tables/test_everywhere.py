"""What table_lock promises on SQLite, PostgreSQL and MariaDB alike."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import LockLost, LockNotAcquired, LockNotHeld, LockTimeout, table_lock
from tests.conftest import eventually
from tests.data.app.models import Account, AccountProxy, Currency, Restaurant, UnmanagedAccount
from tests.data.asking import limits, table_wait
from tests.data.rival import Rival
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def clean(db_alias: str) -> Iterator[None]:
    yield
    Account.objects.using(db_alias).all().delete()


def settings(using: str) -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(limits(using))
        return cursor.fetchone()


def fail_after_writing(using: str) -> None:
    Account.objects.using(using).create(owner="lost")
    raise ZeroDivisionError


def test_write_keeps_writers_and_lockers_out(db_alias: str, rival: Rival) -> None:
    assert rival.writes(db_alias)
    with table_lock(Account, using=db_alias):
        assert not rival.writes(db_alias)
        assert not rival.gets(db_alias, "Account")
        assert rival.reads(db_alias) == (db_alias != "mariadb")
        Account.objects.using(db_alias).create(owner="x")
    assert rival.writes(db_alias)
    assert rival.gets(db_alias, "Account")


def test_read_lets_readers_in(db_alias: str, rival: Rival) -> None:
    with table_lock(read=[Account], using=db_alias):
        assert not rival.writes(db_alias)
        assert rival.reads(db_alias)
        # SQLite has one lock, and it is for one
        assert rival.gets(db_alias, "Account", mode="read") == (db_alias != "default")
        assert Account.objects.using(db_alias).count() == 0


def test_other_tables_are_free(db_alias: str, rival: Rival) -> None:
    with table_lock(Account, using=db_alias):
        assert rival.gets(db_alias, "Currency") == (db_alias != "default")


@pytest.mark.parametrize("timeout", [0.1, 0.3])
def test_r5_the_timeout_is_kept(db_alias: str, rival: Rival, timeout: float) -> None:
    before = settings(db_alias)
    assert rival.lock(db_alias, "Account")[0] == "held"
    start = time.monotonic()
    with (
        pytest.raises(LockTimeout, match=f"{timeout:g} s") as caught,
        table_lock(Account, using=db_alias, timeout=timeout),
    ):
        pytest.fail("two hold it")
    took = time.monotonic() - start
    rival.leave()
    least = table_wait(db_alias, timeout)
    within(took, least + 0.05, least=least - 0.005)
    assert caught.value.__cause__ is not None
    assert settings(db_alias) == before
    assert not connections[db_alias].in_atomic_block
    assert rival.gets(db_alias, "Account")  # r7: nothing is left


@pytest.mark.parametrize("how", [{"nowait": True}, {"timeout": 0}], ids=str)
def test_nowait_does_not_wait(db_alias: str, rival: Rival, how: dict[str, Any]) -> None:
    before = settings(db_alias)
    assert rival.lock(db_alias, "Account")[0] == "held"
    start = time.monotonic()
    with pytest.raises(LockNotAcquired) as caught, table_lock(Account, using=db_alias, **how):
        pytest.fail("two hold it")
    took = time.monotonic() - start
    rival.leave()
    assert type(caught.value) is LockNotAcquired
    within(took, table_wait(db_alias, 0) + 0.05)
    assert settings(db_alias) == before


def test_a_free_lock_leaves_the_settings_alone(db_alias: str) -> None:
    before = settings(db_alias)
    for timeout in (0, 0.3, 7, None):
        with table_lock(Account, Currency, using=db_alias, timeout=timeout):
            assert settings(db_alias) == before
        assert settings(db_alias) == before


def test_a_waiter_gets_it_when_the_holder_leaves(db_alias: str, rival: Rival) -> None:
    with table_lock(Account, using=db_alias):
        Account.objects.using(db_alias).create(owner="committed first")
        rival.tell("lock", db_alias, ["Account"], "write", 5)
    assert rival.child.hear()[0] == "held"
    rival.leave()


def test_a_killed_holder_frees_it(db_alias: str) -> None:
    rival = Rival()
    try:
        assert rival.lock(db_alias, "Account")[0] == "held"
        rival.child.kill()
        with table_lock(Account, using=db_alias, timeout=1):
            pass
    finally:
        rival.stop()


def test_an_exception_rolls_back_and_unlocks(db_alias: str, rival: Rival) -> None:
    with pytest.raises(ZeroDivisionError), table_lock(Account, using=db_alias):
        fail_after_writing(db_alias)
    assert not Account.objects.using(db_alias).exists()
    assert rival.gets(db_alias, "Account")


def test_atomic_inside_is_a_savepoint(db_alias: str, rival: Rival) -> None:
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
    with transaction.atomic(using=db_alias):
        Account.objects.using(db_alias).create(owner="x")
        connections[db_alias].close()
    assert not Account.objects.using(db_alias).exists()
    with pytest.raises(LockLost, match="closed"), table_lock(Account, using=db_alias):
        connections[db_alias].close()
    eventually(lambda: rival.gets(db_alias, "Account"), "still locked")  # the server sees the end of the socket
    with table_lock(Account, using=db_alias):
        assert not rival.gets(db_alias, "Account")


@pytest.mark.parametrize("model", [AccountProxy, UnmanagedAccount])
def test_other_models_of_the_table(db_alias: str, rival: Rival, model: Any) -> None:
    with table_lock(model, using=db_alias):
        assert not rival.writes(db_alias)
        model.objects.using(db_alias).create(owner="x")


def test_two_models_of_one_table(db_alias: str, rival: Rival) -> None:
    with table_lock(read=[UnmanagedAccount], write=[Account], using=db_alias):
        assert not rival.gets(db_alias, "Account", mode="read")


def test_parents_are_locked_too(db_alias: str, rival: Rival) -> None:
    with table_lock(Restaurant, using=db_alias):
        assert not rival.writes(db_alias, "Place")
        restaurant = Restaurant.objects.using(db_alias).create(name="x")
        assert Restaurant.objects.using(db_alias).filter(name="x").count() == 1
        restaurant.delete()


def test_r9_any_order_is_one_order(db_alias: str) -> None:
    """Two threads, the same tables the other way round, 50 times."""
    start = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(*models: Any) -> None:
        try:
            for _ in range(50):
                start.wait(10)
                with table_lock(*models, using=db_alias, timeout=5):
                    pass
        except BaseException as error:
            errors.append(error)
            start.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=order) for order in ((Account, Currency), (Currency, Account))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_recipe_for_many_threads(db_alias: str) -> None:
    """20 increments by each of 4 threads through one object, read and written without any other care."""
    account = Account.objects.using(db_alias).create(owner="x")
    lock = table_lock(Account, using=db_alias, timeout=20)

    def run() -> None:
        for _ in range(20):
            with lock:
                mine = Account.objects.using(db_alias).get(pk=account.pk)
                mine.balance += 1
                mine.save(using=db_alias)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account.refresh_from_db()
    assert account.balance == 80


def test_leaving_what_was_not_entered(db_alias: str) -> None:
    with pytest.raises(LockNotHeld):
        table_lock(Account, using=db_alias).__exit__(None, None, None)


def test_a_decorated_function(db_alias: str, rival: Rival) -> None:
    @table_lock(Account, using=db_alias)
    def add(owner: str) -> bool:
        """Add it."""
        Account.objects.using(db_alias).create(owner=owner)
        return rival.gets(db_alias, "Account")

    assert add(owner="x") is False
    assert add("y") is False
    assert add.__doc__ == "Add it."
    eventually(lambda: rival.gets(db_alias, "Account"), "still locked")
